"""Scaled cosine attention: its global constant, its bounds over a ball and each coefficient of these, against attempts to exceed them.

In `case` W_Q, W_K and W_V read three blocks of the input's width, so that each coefficient bounds one block of the first derivative
or of the second, and no other term can hide that it is too small.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from searched import few
from tiny_certified import random_perturbations
from tiny_layers import built, draw, strayed
from torch import nn
from torch.func import jacfwd, jacrev, vmap

from benchmark.certificates.bounds import scaled_cosine
from benchmark.certificates.bounds.layer_bound import exact_layer_bound
from benchmark.certificates.bounds.scaled_cosine import ScaledCosineBound, column_sum, scaled_cosine_norm_upper
from benchmark.certificates.lipschitz import lipschitz_constant
from benchmark.layers.attention import LipschitzNormAttention
from benchmark.layers.residual import WeightedResidual
from benchmark.layers.scaled_cosine import ScaledCosineAttention

SIZES = [(1, 1, 1), (2, 1, 1), (2, 4, 2), (3, 4, 1), (3, 2, 2), (6, 4, 4), (6, 3, 1)]  # tokens, width, heads


def random_layer(seed: int) -> tuple[ScaledCosineAttention, torch.Tensor]:
    """A layer with weights from 1e-3 to 1e3, and 8 inputs: spread, equal, aligned, sparse, nearly zero and zero tokens."""
    tokens, width, heads = SIZES[seed % len(SIZES)]
    generator = torch.Generator().manual_seed(seed)
    spread = torch.rand(8, dtype=torch.float64, generator=generator)
    layer = ScaledCosineAttention(width, heads, eps=float(10 ** (4 * spread[0] - 3)))
    layer = layer.double().requires_grad_(False)
    for linear, scale in zip((layer.query, layer.key, layer.value, layer.output), 10 ** (6 * spread[1:5] - 3), strict=True):
        linear.weight.copy_(torch.randn(width, width, dtype=torch.float64, generator=generator) * scale)
    if seed % 5 < 2:
        layer.key.weight.copy_((-1) ** seed * layer.query.weight)
    layer.nu.copy_(4 * spread[5] - 2)
    layer.tau.copy_((-1) ** seed * 10 ** (3 * spread[6] - 1.5))
    x = torch.randn(8, tokens, width, dtype=torch.float64, generator=generator) * 10 ** (4 * spread[7] - 3)
    x[1], x[2] = x[1, :1], x[2, :1] * torch.randn(tokens, 1, dtype=torch.float64, generator=generator)
    x[3] *= torch.rand(tokens, width, generator=generator) < 0.4
    x[4], x[5, 1:], x[6] = x[4] * 1e-3, 0, 0
    return layer, x


def exact(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """||J|| of each input by singular values: (n,)."""
    jacobians = vmap(jacrev(lambda z: layer(z[None])[0]))(x)
    return torch.linalg.matrix_norm(jacobians.reshape(len(x), x[0].numel(), -1), ord=2)


@pytest.mark.parametrize("seeds", few([range(70)], [range(280, 2100)]), ids=str)
def test_no_random_layer_exceeds_its_global_constant(seeds) -> None:
    """Layers of 1 to 4 heads at 8 inputs each: the largest exact norm over the constant."""
    cases = map(random_layer, seeds)
    worst = max(float(exact(layer, x).max()) / scaled_cosine_norm_upper(layer, x.shape[1]) for layer, x in cases)
    assert 0.5 < worst <= 1


@pytest.mark.parametrize("tokens", [1, 2, 7])
@pytest.mark.parametrize("tau", [0.0, 0.5, -3.0, 40.0])
def test_columns_of_weights_sum_to_at_most_their_bound(tokens, tau) -> None:
    scores = abs(tau) * (2 * torch.rand(500, tokens, tokens, generator=torch.Generator().manual_seed(0)).double() - 1)
    scores[0], scores[0, :, 0] = -abs(tau), abs(tau)  # the worst of all
    sums = scores.softmax(-1).sum(-2)
    assert sums.max() <= column_sum(tokens, tau) <= tokens * (1 + 1e-9)
    assert sums.max() == pytest.approx(column_sum(tokens, tau), rel=1e-9)


def test_the_constant_is_of_that_layer_alone() -> None:
    with pytest.raises(TypeError, match="LipschitzNormAttention"):
        scaled_cosine_norm_upper(LipschitzNormAttention(4, 2), 3)
    with pytest.raises(ValueError, match="tokens"):
        scaled_cosine_norm_upper(ScaledCosineAttention(4, 2, eps=0.1), 0)


@pytest.mark.parametrize(
    "seeds", few([range(0, 28, 8)], [range(start, start + 100) for start in range(28, 1000, 100)]), ids=str
)
def test_no_random_layer_exceeds_its_bounds_over_a_ball(seeds) -> None:
    """Every claim of the bound around eight inputs, against 200 moves in a set, from tiny radii to large ones."""
    for seed, times in itertools.product(seeds, (0.01, 0.3, 3.0, 100.0)):
        layer, x = random_layer(seed)
        bound, norms = exact_layer_bound(layer, x), exact(layer, x)
        assert (norms <= bound.jacobian_norm * (1 + 1e-9)).all()
        assert (norms >= 0.999 * bound.jacobian_norm - 1e-9).all()  # exact where formed
        radius = times * math.sqrt(layer.eps) / max(float(weight.norm()) for weight in bound.weights)
        perturbation, moves = random_perturbations(x, radius, radius * (seed % 2), seed)
        moved = layer((x + moves).flatten(0, 1)).unflatten(0, moves.shape[:2]) - layer(x)
        left, most = (moved - bound.jvp(moves)).flatten(2).norm(dim=2), bound.bound(perturbation.delta)
        slack = 1e-12 * (1 + float(bound.after))
        assert (moved.flatten(2).norm(dim=2) <= most * (1 + 1e-9) + slack).all()
        assert (most <= bound.quick_bound(perturbation.delta)).all()
        assert (left <= bound.remainder(perturbation) * (1 + 1e-9) + slack * (1 + abs(bound.tau))).all()


def test_the_unformed_norm_of_a_jacobian_is_above_the_exact_one(monkeypatch) -> None:
    """What layers of more than 1,024 entries use."""
    monkeypatch.setattr(scaled_cosine, "FORMED", 0)
    for seed in range(14):
        layer, x = random_layer(seed)
        assert (exact(layer, x) <= exact_layer_bound(layer, x).jacobian_norm * (1 + 1e-9)).all()


def test_the_bound_of_an_infinite_move_is_finite() -> None:
    bound = exact_layer_bound(built(ScaledCosineAttention(8, 2, eps=0.01)), draw(3, 5, 8))
    infinite = torch.full((3,), torch.inf, dtype=torch.float64)
    assert torch.isfinite(bound.bound(infinite)).all()
    assert torch.isfinite(bound.quick_bound(infinite)).all()


@pytest.mark.parametrize(
    ("eps", "tau", "scale"),
    few(
        [(1e-6, 1e4, 100.0), (10.0, 1.0, 1.0), (1e-6, -3.0, 0.01)], [(10.0, 1e4, 100.0), (1e-6, 1.0, 1.0), (10.0, -3.0, 0.01)]
    ),
)
def test_float32_rounds_no_more_than_its_bound(eps, tau, scale) -> None:
    torch.manual_seed(2)
    single = ScaledCosineAttention(8, 2, eps=eps, tau=tau, nu=-1.5).requires_grad_(False)
    x = (scale * draw(200, 5, 8)).float()
    x[:20] *= 1e-4
    x[20:30, 2:] = 0
    for gap, claimed in strayed(single, x, x + 0.05 * scale * draw(200, 5, 8, seed=1).float()):
        assert (gap <= claimed).all()


def test_global_constants_of_lipsformers_parts() -> None:
    x, attention = draw(2, 3, 4), built(ScaledCosineAttention(4, 2, eps=0.1))
    layer = WeightedResidual(attention, 4).double().requires_grad_(False)
    layer.alpha.copy_(torch.tensor([0.1, -0.7, 0.2, 0.0]))
    assert lipschitz_constant(layer, x) == pytest.approx(1 + 0.7 * scaled_cosine_norm_upper(attention, 3))


BLOCK_SIZES = [(1, 1), (2, 1), (3, 1), (2, 2), (4, 2)]  # tokens, width of a block
COUNT = 24


def case(seed: int) -> tuple[ScaledCosineAttention, torch.Tensor]:
    """A head of three blocks with tau of 0.1 to 10 and either sign, and inputs whose blocks' sizes are 0.1 to 10."""
    tokens, block = BLOCK_SIZES[seed % len(BLOCK_SIZES)]
    generator = torch.Generator().manual_seed(seed)
    tau = (-1) ** seed * 10 ** (2 * torch.rand(1, generator=generator).item() - 1)
    layer = ScaledCosineAttention(3 * block, 1, eps=1.0, tau=tau).double().requires_grad_(False)
    for place, linear in enumerate((layer.query, layer.key, layer.value)):
        linear.weight.zero_()
        linear.weight[:block, place * block : (place + 1) * block] = torch.eye(block)
    layer.output.weight.copy_(torch.eye(3 * block))
    x = torch.randn(COUNT, tokens, 3 * block, dtype=torch.float64, generator=generator)
    x *= 10 ** (2 * torch.rand(COUNT, 1, 3 * block, dtype=torch.float64, generator=generator) - 1)
    x[:8] = x[:8].abs() * torch.tensor([1.0, -1.0, 1.0, -1.0])[:tokens, None]  # two groups of tokens, opposite
    return layer, x


def largest_form(tensor: torch.Tensor) -> torch.Tensor:
    """A lower bound of sup <u, T[v, w]> over unit u, v, w, for T (n, outputs, a, b), by turns: (n,)."""
    generator = torch.Generator().manual_seed(0)
    v, w = (torch.randn(len(tensor), size, dtype=torch.float64, generator=generator) for size in tensor.shape[2:])
    size = tensor.new_zeros(len(tensor))
    for _ in range(12):
        u = torch.nn.functional.normalize(torch.einsum("noab,na,nb->no", tensor, v, w), dim=1)
        v = torch.nn.functional.normalize(torch.einsum("noab,no,nb->na", tensor, u, w), dim=1)
        w = torch.einsum("noab,no,na->nb", tensor, u, v)
        size, w = w.norm(dim=1), torch.nn.functional.normalize(w, dim=1)
    return size


def worst_ratios(seed: int, radius: float) -> dict[tuple[int, ...], float]:
    """Each block of the exact derivatives at points `radius` away, over its coefficient; by the places of its letters in qkv."""
    layer, x = case(seed)
    block, outputs = x.shape[2] // 3, x[0].numel()
    move = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    moved = x + move * radius / move.flatten(1).norm(dim=1)[:, None, None]

    def head(z: torch.Tensor) -> torch.Tensor:
        return layer(z[None])[0]

    first = vmap(jacrev(head))(moved).reshape(COUNT, outputs, *x.shape[1:])
    second = vmap(jacfwd(jacrev(head)))(moved).reshape(COUNT, outputs, *x.shape[1:], *x.shape[1:])
    ball = ScaledCosineBound(layer, x)._ball(torch.full((COUNT,), radius, dtype=torch.float64))
    parts = [slice(place * block, (place + 1) * block) for place in range(3)]
    worst: dict[tuple[int, ...], float] = {}
    for place, bound in enumerate(ball.first()):
        norms = torch.linalg.matrix_norm(first[..., parts[place]].flatten(2), ord=2)
        worst[(place,)] = float((norms / bound[:, 0]).max())
    for (left, right), bound in ball.second().items():
        tensor = second[:, :, :, parts[left]][..., parts[right]].flatten(4).flatten(2, 3)
        sizes = largest_form(tensor) * (1 if left == right else 2)  # a cross term stands twice in D^2 F[d, d]
        worst[(left, right)] = float((sizes / bound[:, 0]).max())
    return worst


def test_every_coefficient_bounds_its_derivative_and_is_nearly_attained() -> None:
    ratios = [worst_ratios(seed, 0.0) for seed in range(10)]
    assert all(0.7 < max(ratio[name] for ratio in ratios) <= 1 + 1e-9 for name in ratios[0])


MANY = itertools.product([0.0, 0.01, 0.1, 1.0, 10.0], [range(10, 40), range(40, 110)])


@pytest.mark.parametrize(("radius", "seeds"), few([(0.03, [3]), (0.5, [2, 4])], [*MANY]), ids=str)
def test_no_derivative_in_the_ball_exceeds_its_coefficient(radius, seeds) -> None:
    assert all(max(worst_ratios(seed, radius).values()) <= 1 + 1e-9 for seed in seeds)
