"""Norms of attention's weights by role and layer, against matrices whose norms are known."""

from __future__ import annotations

import pytest
import torch

from benchmark.layers.attention_weights import AttentionWeights
from benchmark.studies.measures.attention_norms import measure

NOTHING = torch.zeros(0)


def layer(name: str, sizes: tuple[float, ...], *, key: bool = True, gamma: float | None = None) -> AttentionWeights:
    """Two heads of 3 x 2 with norms `sizes` and twice `sizes`: multiples of the first columns of the identity."""
    heads = torch.eye(3)[:, :2] * torch.tensor([1.0, 2.0])[:, None, None]
    query, of_key, value, output = (size * heads for size in sizes)
    scale = None if gamma is None else torch.tensor([gamma, 1.0, 1.0])
    return AttentionWeights(name, query, of_key if key else None, value, output.mT, scale)


def measured(*layers: AttentionWeights) -> dict:
    return measure(torch.nn.Identity(), NOTHING, NOTHING, seed=0, attention=layers)


def test_means_over_heads_layers_and_roles() -> None:
    values = measured(layer("a", (1.0, 2.0, 3.0, 4.0)), layer("b", (3.0, 2.0, 1.0, 0.0)))
    assert values["query: mean"] == pytest.approx(3.0)  # (1 + 2 + 3 + 6) / 4
    assert values["query"] == pytest.approx([1.5, 4.5])
    assert values["output"] == pytest.approx([6.0, 0.0])
    assert values["mean"] == pytest.approx(3.0)  # the projection is not among the penalised roles
    assert values["x"] == [1.0, 2.0]
    assert "scaled mean" not in values


def test_gamma_scales_weights_and_a_role_that_a_layer_lacks_is_left_out() -> None:
    values = measured(layer("a", (1.0, 1.0, 1.0, 1.0), gamma=10.0))
    assert values["mean"] == pytest.approx(1.5)
    assert values["scaled mean"] == pytest.approx(15.0)
    assert "x" not in values
    values = measured(layer("a", (1.0, 9.0, 3.0, 4.0), key=False), layer("b", (1.0, 9.0, 3.0, 4.0)))
    assert "key: mean" not in values
    assert values["mean"] == pytest.approx(3.0)  # (1.5 + 4.5) / 2
