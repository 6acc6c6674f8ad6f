"""The bound of attention by competition: constant 1 in audits that catch planted steps, and float32's rounding."""

from __future__ import annotations

import pytest
import torch
from searched import few
from tiny_layers import strayed
from torch import nn

from benchmark.certificates.bounds.checked_copy import rebuilt
from benchmark.certificates.bounds.layer_bound import exact_layer_bound
from benchmark.evaluation.audit_layers import Effort, audit_layers
from benchmark.layers.competitive_attention import CompetitiveAttention, ConeAttention, MaxMinTokens, watching
from benchmark.layers.lipschitz import NormalisedHead, OrthogonalLinear
from benchmark.layers.tokens import Patchify
from benchmark.runtime.errors import BenchmarkError

LAYERS = {
    "simplex": lambda: CompetitiveAttention(12, 1, side=3, window=5, budget=0.3),
    "simplex of all": lambda: CompetitiveAttention(36, 2, side=3, window=9, budget=2.0),
    "cone": lambda: ConeAttention(24, 2, side=3, window=5),
    "cone of all": lambda: ConeAttention(18, 1, side=3, window=9),
    "max and min": lambda: MaxMinTokens(3, 5),
}


def network(layer: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    width = getattr(layer, "width", 12)
    parts = [Patchify(2), OrthogonalLinear(4, width), layer, OrthogonalLinear(width, 12), nn.Flatten(1)]
    return nn.Sequential(*parts, NormalisedHead(108, 3)).eval().requires_grad_(False)


@pytest.mark.parametrize("name", LAYERS)
def test_the_audit_catches_a_step_that_is_too_long(name, monkeypatch) -> None:
    model, images = network(LAYERS[name]()), torch.rand(4, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    kind = type(model[2])
    forward = kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, x: x + 1.05 * (forward(self, x) - x))
    with pytest.raises(BenchmarkError, match=r"layer 2 .* exceeds its"):
        audit_layers(model, images, list(range(4)), "row", effort=Effort(radii=(0.1,), starts=2))


def drawn(kind: str, width: int, seed: int) -> torch.Tensor:
    """float32 inputs on which the level is hard to compute, or exactly tied."""
    x = torch.randn(40, 9, width, generator=torch.Generator().manual_seed(seed))
    return {
        "plain": x,
        "small": 1e-4 * x,
        "shifted": x + 1000.0,
        "alike": 1.0 + 1e-6 * x,
        "tied": (2 * x).round() / 4,
        "one far": torch.where(torch.arange(9)[:, None] == 4, 1e4 * x, x),
    }[kind]


KINDS = ("plain", "small", "shifted", "alike", "tied", "one far")


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("seed", few([0], range(1, 40)))
def test_float32_strays_no_further_than_claimed(name, seed) -> None:
    single = LAYERS[name]().requires_grad_(False)
    if isinstance(single, CompetitiveAttention):
        single.log_budget.copy_(0.2 * torch.randn(single.heads, generator=torch.Generator().manual_seed(seed)))
    closest = 0.0
    for kind in KINDS:
        x = drawn(kind, getattr(single, "width", 11), seed)
        moved = x + 0.1 * drawn("plain", x.shape[2], seed + 1)
        for gap, claimed in strayed(single, x, moved):
            assert (gap <= claimed).all(), kind
            closest = max(closest, float((gap / claimed.clamp(min=1e-30)).max()))
    assert closest > 0.003 or name == "max and min", "it is no sham"


@pytest.mark.parametrize("name", ["simplex", "cone"])
@pytest.mark.parametrize("delta", [0.0, 1.0])
def test_the_claim_has_every_part_of_the_proof(name, delta) -> None:
    """By hand with u = 2^-24 and K = 5: what rounds in the scores, the level, the excess and the result."""
    layer, u = LAYERS[name]().double().requires_grad_(False), 2.0**-24
    x = torch.randn(1, 9, layer.width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    length = float(x.norm()) + delta
    most = length + (3 * 0.3 if name == "simplex" else 0.0)
    off = (5**0.5 * 13 + 1) * u * most
    if name == "cone":
        off = 6**0.5 * off + 5 * 5**0.5 * u * most
    off += 3 * u * length
    expected = 2 * off + 4 * u * most + u * (float(layer(x).norm()) + delta)
    claimed = float(exact_layer_bound(layer, x).rounding(torch.tensor([delta]).double()))
    assert expected <= claimed <= expected * 1.001


@pytest.mark.parametrize(
    ("kind", "channels", "budget"), [(CompetitiveAttention, {0: 1.0}, 0.5**0.5), (ConeAttention, {1: 2.0, 2: 1.0}, None)]
)
def test_at_exact_ties_of_the_level_one_branch_has_the_derivative(kind, channels, budget) -> None:
    x = torch.zeros(1, 9, 12, dtype=torch.float64)
    for channel, value in channels.items():
        x[..., channel] = value
    layer = kind(12, 1, side=3, window=5, **({"budget": budget} if budget else {})).double().requires_grad_(False)
    if budget:
        assert float(layer.scores(x).max()) == layer.budget, "tied with the budget"
    jacobian = torch.func.jacrev(layer)(x).reshape(108, 108)
    assert float(torch.linalg.matrix_norm(jacobian, ord=2)) <= 1 + 1e-12


@pytest.mark.parametrize("budget", [2**0.5, 3 * 2**0.5, None])
def test_the_audit_raises_no_alarm_at_ties_up_to_rounding(budget) -> None:
    own = {"budget": budget} if budget else {}
    layer = (CompetitiveAttention if own else ConeAttention)(18, 1, side=3, window=9, **own)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(162, 3)).double().requires_grad_(False)
    x = torch.randint(-3, 4, (12, 9, 18), generator=torch.Generator().manual_seed(0)).double()
    jacobians = torch.func.vmap(torch.func.jacrev(lambda z: layer(z[None])[0]))(x).reshape(12, 162, 162)
    assert float(torch.linalg.matrix_norm(jacobians, ord=2).max()) > 1.1, "autodiff mixes two branches"
    audit_layers(model, x, list(range(12)), "row", effort=Effort((0.01, 1.0), 4, 6))
    assert model(x[:0]).shape == (0, 3), "an empty batch"


def test_nothing_is_certified_while_patterns_are_replaced() -> None:
    network = nn.Sequential(CompetitiveAttention(12, 1, side=3, window=5), nn.Flatten(), nn.Linear(108, 3))
    with watching(lambda pattern, _: 40 * pattern), pytest.raises(BenchmarkError, match="leave that block, then certify"):
        rebuilt(network.eval())
