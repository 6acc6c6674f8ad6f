"""The bound of attention over a grid: one-sided against ascent, random moves, dense Jacobians and each step of its proof."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from searched import few
from tiny_layers import draw

from benchmark.certificates.bounds.attention_ascent import sphere_ascent
from benchmark.certificates.bounds.layer_bound import exact_layer_bound
from benchmark.layers.attention_grid import GridAttention, GridSensitivity


def layer_of(seed: int, *, content: float = 1.0, offsets: float = 1.0, heads: int = 2, side: int = 2) -> GridAttention:
    torch.manual_seed(seed)
    layer = GridAttention(4 * heads, heads, inner=1 + seed % 4, side=side, content=content)
    layer = layer.double().eval().requires_grad_(False)
    layer.table.copy_(offsets * torch.randn(layer.table.shape))
    layer.log_content.add_(0.5 * torch.randn(heads))
    for part in (layer.query, layer.key, layer.value, layer.output):
        part.raw.copy_(torch.randn(part.raw.shape))
        part.bias.copy_(0.3 * torch.randn(part.bias.shape))
    return layer


def ascent(layer: GridAttention, x: torch.Tensor, radius: float) -> torch.Tensor:
    """The largest move found: (n,)."""
    clean = layer(x)
    return sphere_ascent(lambda z: (layer(z) - clean).flatten(1).norm(dim=1), x, radius, steps=12, starts=2)


EXTREMES = [(1, 1.0, 1.0, 1.0, 0.1), (2, 30.0, 0.0, 5.0, 3.0), (3, 1e-3, 20.0, 0.1, 1e-4)]
MANY = [(seed, 10 ** (seed % 5 - 3), seed % 3 * 10, (0.1, 1.0, 5.0)[seed % 3], 10 ** (seed % 4 - 3)) for seed in range(4, 64)]


@pytest.mark.parametrize(("seed", "content", "offsets", "size", "radius"), few(EXTREMES, MANY))
@pytest.mark.parametrize("kind", ["spread", "alike", "one far", "sparse"])
def test_ascent_does_not_exceed_the_bound(seed, content, offsets, size, radius, kind) -> None:
    layer = layer_of(seed, content=content, offsets=offsets)
    x = size * torch.randn(4, 4, 8, dtype=torch.float64)
    if kind == "alike":
        x = x[:, :1] + 1e-3 * x
    elif kind == "one far":
        x[:, 0] *= 20
    elif kind == "sparse":
        x = x * (torch.rand(x.shape) < 0.3)
    bound = exact_layer_bound(layer, x).bound(torch.full((4,), radius, dtype=torch.float64))
    assert (ascent(layer, x, radius) <= bound).all()


@pytest.mark.parametrize("seed", few([3], range(4, 10)))
def test_each_step_of_the_proof_on_random_moves(seed) -> None:
    """sd_p(dS), the spread, rows of P' - P times values and the identity, and their sum over rows and heads."""
    layer = layer_of(seed, content=0.5, heads=3)
    x, radius = torch.randn(1, 4, 12, dtype=torch.float64), 0.4
    mixing, t = layer.mixing(x), layer.content[:, None, None]
    sensitivity = GridSensitivity(mixing, layer.content, floor=1e-10)
    e = torch.full((1,), radius, dtype=torch.float64)
    w = sensitivity.content * radius * (2 * sensitivity.farthest + math.sqrt(2) * sensitivity.query_sizes + 1.2072 * radius)
    kappa = torch.expm1(w) / w
    centre = mixing.values - mixing.values.mean(2, keepdim=True)
    spreads = (centre, sensitivity.value_spread), (torch.eye(4).double(), sensitivity.weight_spread)
    for seed in range(50):
        move = draw(1, 4, 12, seed=seed)
        moved = layer.mixing(x + move / move.norm() * radius)
        change = moved.queries @ moved.keys.mT * t - mixing.queries @ mixing.keys.mT * t
        mean = (mixing.weights * change).sum(-1, keepdim=True)
        deviation = (mixing.weights * (change - mean) ** 2).sum(-1).sqrt()
        assert (change.amax(-1) - change.amin(-1) <= w).all()
        for y, spread in spreads:
            rows = torch.linalg.vector_norm((moved.weights - mixing.weights) @ y, dim=-1)
            assert (rows <= kappa * deviation * spread * (1 + 1e-9)).all()
            assert rows.norm() <= sensitivity._move(kappa * spread, e)


def test_without_content_the_bound_is_the_norm_of_a_convolution() -> None:
    layer = layer_of(0, content=1e-200, side=3)
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    bound = exact_layer_bound(layer, x)
    delta = torch.full((2,), 0.3, dtype=torch.float64)
    assert ((delta <= bound.bound(delta)) & (bound.bound(delta) <= delta * (1 + 1e-6))).all()
    assert (bound.bound(delta) >= ascent(layer, x, 0.3)).all()


def test_what_is_not_known_is_infinite_and_larger_radii_move_farther() -> None:
    layer, x = layer_of(1, content=50.0), 3 * torch.randn(2, 4, 8, dtype=torch.float64)
    bound = exact_layer_bound(layer, x)
    radii = [bound.bound(torch.full((2,), e, dtype=torch.float64)) for e in (1e-6, 1e-3, 0.1, 1.0, 1e3, math.inf)]
    assert all((small <= large).all() for small, large in itertools.pairwise(radii))
    assert torch.isinf(torch.stack(radii[-2:])).all()
    far = exact_layer_bound(layer, 1e4 * x)
    assert torch.isinf(far.bound(torch.full((2,), 1e-9, dtype=torch.float64))).all(), "scores beyond float64's care"


def test_a_bias_that_cancels_large_tokens_hides_no_rounding() -> None:
    """Queries and keys are small, and what is left of their sums errs by digits of the tokens."""
    layer, far = layer_of(3, content=1.0), torch.full((8,), 1e4, dtype=torch.float64)
    for part in (layer.query, layer.key):
        part.bias.copy_(-(part.weight @ far))
    x = far + torch.randn(2, 4, 8, dtype=torch.float64)
    assert layer.mixing(x).queries.norm(dim=-1).max() < 20
    assert torch.isinf(exact_layer_bound(layer, x).bound(torch.full((2,), 0.1, dtype=torch.float64))).all()
