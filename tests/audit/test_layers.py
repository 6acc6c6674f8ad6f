"""Every bound of a layer that is lowered is caught by the audit, and none that is right is."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny_audited import GREY, SMALL, network
from tiny_networks import random_network
from torch import nn

from benchmark.audit import layers as audited
from benchmark.audit.layers import Effort, audit_layers
from benchmark.certificates.bounds import dispatch
from benchmark.runtime.errors import BenchmarkError

# how far each claim is lowered: one that ascent reaches by a hundredth, looser ones by what it leaves open
LIES = [
    (2, dispatch.Step, "bound", 0.99),
    (2, dispatch.Step, "push", 0.99),
    (4, dispatch.ProjectStep, "bound", 0.99),
    (4, dispatch.ProjectStep, "push", 0.99),
    (4, dispatch.ProjectStep, "remainder", 0.8),
    (4, dispatch.ProjectStep, "along", 0.8),
    (5, dispatch.AttentionStep, "bound", 0.9),
    (5, dispatch.AttentionStep, "push", 0.99),
    (5, dispatch.AttentionStep, "remainder", 0.3),
    (5, dispatch.AttentionStep, "along", 0.3),
    (6, dispatch.SLLStep, "bound", 0.99),
    (6, dispatch.SLLStep, "push", 0.99),
    (6, dispatch.SLLStep, "remainder", 0.3),
    (6, dispatch.SLLStep, "along", 0.8),
]
CLAIMS = {"push": "Jacobian", "along": "remainder along a margin"}


def one_layer(place: int) -> tuple[nn.Sequential, torch.Tensor]:
    """The layer at `place` of `network()` before a head, and what it is given for three images."""
    model = network()
    return nn.Sequential(model[place], model[-1]), copy.deepcopy(model[:place]).double()(GREY[:3].double())


@pytest.mark.parametrize(("place", "kind", "method", "factor"), LIES, ids=lambda v: getattr(v, "__name__", str(v)))
def test_a_bound_of_a_layer_that_is_too_small_is_caught(place, kind, method, factor, monkeypatch) -> None:
    model, x = one_layer(place)
    effort = Effort(radii=(0.1,), starts=4, steps=6)
    audit_layers(model, x, [7, 8, 9], "row", effort=effort)
    honest = getattr(kind, method)
    monkeypatch.setattr(kind, method, lambda self, *a: factor * honest(self, *a))
    name = type(model[0]).__name__
    with pytest.raises(
        BenchmarkError, match=rf"row: layer 0 \({name}\) exceeds its {CLAIMS.get(method, method)}.* [789], "
    ):
        audit_layers(model, x, [7, 8, 9], "row", effort=effort)


@pytest.mark.parametrize("place", [2, 4, 5, 6, 7])
def test_a_gain_a_hundredth_too_small_is_caught(place, monkeypatch) -> None:
    model, x = one_layer(place)
    exact = dispatch.exact_step

    def lying(layer, x):
        found = exact(layer, x)
        gain = found.gain * 0.99
        found.__class__ = type("Lying", (type(found),), {"gain": property(lambda _: gain)})
        return found

    monkeypatch.setattr(audited, "exact_step", lying)
    with pytest.raises(BenchmarkError, match="exceeds its gain at image"):
        audit_layers(model, x, [0, 1, 2], "row", effort=SMALL)


def test_a_bound_that_is_not_a_number_is_caught(monkeypatch) -> None:
    monkeypatch.setattr(dispatch.SLLStep, "remainder", lambda self, reach: reach.delta * torch.nan)
    model, x = one_layer(6)
    with pytest.raises(BenchmarkError, match=r"SLLBlock.* exceeds its remainder"):
        audit_layers(model, x, [0, 1, 2], "row", effort=SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_random_layers_keep_their_bounds(seed) -> None:
    """Every layer of the networks that measurements/network_soundness.py draws, ordinary and extreme."""
    model, images, _ = random_network(seed)
    tally = audit_layers(model, images[:3], list(range(3)), "row", effort=Effort(starts=3, steps=6), seed=seed)
    assert tally.layers == len(model) - 1
    assert 0 < tally.worst <= 1 + 1e-9
