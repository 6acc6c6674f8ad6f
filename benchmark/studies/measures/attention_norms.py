"""Measure `attention_norms`: the largest singular values of attention's weights, head by head."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from benchmark.layers.attention_weights import ROLES, AttentionWeights
from benchmark.runtime.errors import BenchmarkError

PENALISED = ("query", "key", "value")  # whose mean is `mean`

Results = dict[str, float | list[float] | torch.Tensor]


def measure(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    seed: int,
    attention: Sequence[AttentionWeights],
) -> Results:
    """Return norms by dense SVD in float64. The images do not matter.

    Returns:
        `mean`, of queries', keys' and values' weights over roles, heads and layers, and `scaled mean` of the same with the
        norm in front, sigma(diag(gamma) W), where every layer has one: a smaller W undone by a larger gamma shows there.
        `<role>: mean` over heads and layers, for roles that every layer has; with two layers or more also the curves `<role>`
        over the layer's number, the mean over its heads.
    """
    roles = [role for role in ROLES if all(layer.role(role) is not None for layer in attention)]
    norms = {role: [_norms(layer, role, False) for layer in attention] for role in roles}
    chosen = [role for role in PENALISED if role in norms]
    if not chosen:
        raise BenchmarkError("measure attention_norms: no layer has a query, key or value weight")
    measured: Results = {"mean": _mean([of_layer for role in chosen for of_layer in norms[role]])}
    if all(layer.gamma is not None for layer in attention):
        measured["scaled mean"] = _mean([_norms(layer, role, True) for role in chosen for layer in attention])
    measured |= {f"{role}: mean": _mean(of_layers) for role, of_layers in norms.items()}
    if len(attention) > 1:
        measured["x"] = [float(number) for number in range(1, len(attention) + 1)]
        measured |= {role: [float(of_layer.mean()) for of_layer in of_layers] for role, of_layers in norms.items()}
    return measured


def _norms(layer: AttentionWeights, role: str, scaled: bool) -> torch.Tensor:
    """Return the norm of each head's weight, (heads,)."""
    weight = layer.role(role)
    assert weight is not None
    weight = weight.detach().double()
    if scaled and layer.gamma is not None:
        weight = layer.gamma.detach().double()[:, None] * weight
    return torch.linalg.matrix_norm(weight, ord=2)


def _mean(parts: list[torch.Tensor]) -> float:
    return float(torch.cat(parts).mean())
