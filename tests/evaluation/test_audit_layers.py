"""Every bound of a layer that is lowered is caught by the audit, and none that is right is."""

from __future__ import annotations

import copy
import math
from functools import cache

import pytest
import torch
from searched import draws
from tiny_certified import GREY, SMALL, one_block
from tiny_networks import random_network
from torch import nn

from benchmark.certificates.bounds import attention, layer_bound, projection, sll
from benchmark.evaluation import audit_layers as audited
from benchmark.evaluation.audit_layers import Effort, audit_layers
from benchmark.runtime.errors import BenchmarkError

BOUND, PROJECTION = layer_bound.LayerBound, projection.ProjectionBound
ATTENTION, SLL = attention.AttentionBound, sll.SLLBound
# how far each claim is lowered: one that ascent reaches by a hundredth, looser ones by what it leaves open
LIES = [
    *((place, kind, claim, 0.99) for place, kind in ((2, BOUND), (4, PROJECTION), (6, SLL)) for claim in ("bound", "jvp")),
    *((4, PROJECTION, claim, 0.8) for claim in ("remainder", "remainder_along")),
    (5, ATTENTION, "bound", 0.9),
    (5, ATTENTION, "jvp", 0.99),
    *((place, kind, "remainder", 0.3) for place, kind in ((5, ATTENTION), (6, SLL))),
    (5, ATTENTION, "remainder_along", 0.3),
    (6, SLL, "remainder_along", 0.8),
    (6, SLL, "remainder", math.nan),
]
CLAIMS = {"jvp": "Jacobian", "remainder_along": "remainder along a margin"}


def one_layer(place: int) -> tuple[nn.Sequential, torch.Tensor]:
    """The layer at `place` of `one_block()` before a head, and what it is given for three images."""
    model = one_block()
    return nn.Sequential(model[place], model[-1]), copy.deepcopy(model[:place]).double()(GREY[:3].double())


EFFORT = Effort(radii=(0.1,), starts=4, steps=6)


@cache
def honest_tally(place: int) -> audited.Tally:
    model, x = one_layer(place)
    return audit_layers(model, x, [7, 8, 9], "row", effort=EFFORT)


@pytest.mark.sweep
@pytest.mark.parametrize(("place", "kind", "method", "factor"), LIES, ids=lambda v: getattr(v, "__name__", str(v)))
def test_a_bound_of_a_layer_that_is_too_small_is_caught(place, kind, method, factor, monkeypatch) -> None:
    model, x = one_layer(place)
    assert honest_tally(place).worst <= 1 + 1e-9
    honest = getattr(kind, method)
    monkeypatch.setattr(kind, method, lambda self, *a: factor * honest(self, *a))
    words = rf"row: layer 0 \({type(model[0]).__name__}\) exceeds its {CLAIMS.get(method, method)}.* [789], "
    with pytest.raises(BenchmarkError, match=words):
        audit_layers(model, x, [7, 8, 9], "row", effort=EFFORT)


@pytest.mark.parametrize(
    ("claim", "place", "words"),
    [("everywhere", 2, "global constant"), *(("jacobian_norm", place, "gain") for place in (2, 4, 5, 6, 7))],
)
def test_a_norm_a_hundredth_too_small_is_caught(claim, place, words, monkeypatch) -> None:
    def lying(layer, x):
        bound = layer_bound.exact_layer_bound(layer, x)
        norm = 0.99 * bound.jacobian_norm
        bound.__class__ = type("Lying", (type(bound),), {claim: property(lambda _: norm)})
        return bound

    monkeypatch.setattr(audited, "exact_layer_bound", lying)
    model, x = one_layer(place)
    with pytest.raises(BenchmarkError, match=rf"exceeds its {words} at image [789], "):
        audit_layers(model, x, [7, 8, 9], "row", effort=SMALL)


def test_a_model_with_a_layer_that_has_no_bound_is_not_audited() -> None:
    model = nn.Sequential(nn.MultiheadAttention(4, 2), nn.Linear(4, 3))
    assert audit_layers(model, torch.zeros(1, 2, 4), [0], "row", effort=EFFORT) == audited.Tally()


@pytest.mark.slow
@pytest.mark.parametrize("seed", draws([1, 2], [0, *range(3, 30)]))
def test_random_layers_keep_their_bounds(seed) -> None:
    """Every layer of the networks that measurements/network_soundness.py draws, ordinary and extreme."""
    model, images, _ = random_network(seed)
    tally = audit_layers(model, images[:3], list(range(3)), "row", effort=Effort(starts=3, steps=6), seed=seed)
    assert tally.layers == len(model) - 1
    assert 0 < tally.worst <= 1 + 1e-9
