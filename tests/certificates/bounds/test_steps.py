"""Steps of PyTorch's layers, LayerNorm, L2 attention and residuals: one-sided attempts to break every bound, in float64 and float32."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from ball_search import jacobian_norm
from searched import few
from tiny_certified import random_perturbations
from tiny_layers import CURVED, LINEAR, built, draw, vit
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmark.certificates.bounds import activations
from benchmark.certificates.bounds.layer_bound import LayerBound, PerturbationSet, exact_layer_bound
from benchmark.certificates.bounds.plain_layers import plain
from benchmark.certificates.lipschitz import lipschitz_constant
from benchmark.certificates.local import float32_gap
from benchmark.layers.attention_l2 import L2Attention
from benchmark.layers.attention_window import L2WindowAttention
from benchmark.layers.residual import Residual, WeightedResidual
from benchmark.layers.resize import Resize
from benchmark.layers.scaled_cosine import ScaledCosineAttention
from benchmark.layers.tokens import LayerProject


@pytest.fixture(autouse=True)
def plain_attention():
    """The kernel that has a forward derivative."""
    with sdpa_kernel(SDPBackend.MATH):
        yield


def against(left: torch.Tensor, moves: torch.Tensor) -> torch.Tensor:
    """The directions that the largest and the smallest remainders take most from, and random ones: (n, 5, *shape)."""
    sizes = left.flatten(2).norm(dim=2)
    picks = [sizes.argmax(0), (sizes / moves.flatten(2).norm(dim=2)).argmax(0)]
    large, small = (-left[pick, torch.arange(left.shape[1])] for pick in picks)
    return torch.stack([large, small, large.sign(), draw(*left.shape[1:]), draw(*left.shape[1:], seed=1)], 1)


REACHES = [(1e-3, 0.0), (0.03, 0.01), (0.3, 0.0), (0.5, 0.3), (3.0, 1.0)]


@pytest.mark.parametrize("name", CURVED)
@pytest.mark.parametrize(("reaches", "seed"), few([(REACHES[1::3], 1)], [(REACHES, seed) for seed in range(2, 30)]))
def test_no_curved_step_is_broken(name, reaches, seed) -> None:
    """Every claim of a layer's bound against 200 moves in each of some sets."""
    layer, shape = CURVED[name]
    layer = built(layer, seed)
    x = draw(3, *shape, seed=seed) * (0.3, 1.0, 3.0)[seed % 3]
    layer_bound = exact_layer_bound(layer, x)
    for radius, rest in reaches:
        perturbation, moves = random_perturbations(x, radius, rest, seed)
        moved = layer((x + moves).flatten(0, 1)).unflatten(0, moves.shape[:2]) - layer(x)
        reached, most = moved.flatten(2).norm(dim=2), layer_bound.bound(perturbation.delta)
        assert (reached <= most * (1 + 1e-9)).all()
        # grid attention knows no bound of large moves; clipped units whose threshold is below 0 do not move
        assert (reached / most).max() > 0 or name in ("grid attention", "clipped relu")
        linear = layer_bound.jvp(moves)
        exact = torch.func.jvp(layer, (x,), (moves[0],))[1]
        tilt = layer_bound.f.tilt if isinstance(layer_bound, activations.SmoothActivationBound) else 0.0  # of torch's slope
        assert ((linear[0] - exact).abs() <= 1e-9 + (tilt * moves[0].abs() if tilt else 0.0)).all()
        sizes = moves.flatten(2).norm(dim=2)
        assert (linear.flatten(2).norm(dim=2) <= layer_bound.jacobian_norm * sizes * (1 + 1e-9)).all()
        left = moved - linear
        assert (left.flatten(2).norm(dim=2) <= layer_bound.remainder(perturbation) * (1 + 1e-9) + 1e-13).all()
        a = against(left, moves)
        taken = -torch.einsum("snm,nrm->snr", left.flatten(2), a.flatten(2)).amax(0)
        slack = 1e-13 * a.flatten(2).norm(dim=2)
        assert (taken <= layer_bound.remainder_along(a, perturbation) * (1 + 1e-9) + slack).all()


@pytest.mark.parametrize("name", CURVED)
@pytest.mark.parametrize("steps", few([4], [30]))
def test_ascent_breaks_no_bound_and_no_remainder(name, steps) -> None:
    layer, shape = CURVED[name]
    layer, x = built(layer, 1), draw(2, *shape, seed=5)
    layer_bound = exact_layer_bound(layer, x)
    assert_plain(layer, x)
    basis = torch.eye(x[0].numel()).double().reshape(-1, 1, *shape).expand(-1, 2, *shape)
    jacobians = layer_bound.jvp(basis).flatten(2).transpose(0, 1)
    assert (torch.linalg.matrix_norm(jacobians, ord=2) <= layer_bound.jacobian_norm * (1 + 1e-9)).all()
    for radius, aim in itertools.product((0.05, 0.7), ("bound", "remainder")):
        delta = torch.full((2,), radius, dtype=torch.float64)
        perturbation = PerturbationSet(random_perturbations(x, radius, 0.0, 1)[0].columns, delta, delta, delta)
        limit = layer_bound.bound(delta) if aim == "bound" else layer_bound.remainder(perturbation)
        move = draw(*x.shape, seed=2)
        for _ in range(steps):
            move = (move * radius / move.flatten(1).norm(dim=1).reshape(-1, *[1] * len(shape))).requires_grad_()
            change = layer(x + move) - layer(x) - (layer_bound.jvp(move[None])[0] if aim == "remainder" else 0)
            sizes = change.flatten(1).norm(dim=1)
            assert (sizes <= limit * (1 + 1e-9) + 1e-13).all()
            (gradient,) = torch.autograd.grad(sizes.sum(), move)
            move = (move + radius * gradient / gradient.abs().max().clamp(min=1e-300)).detach()


@pytest.mark.parametrize("name", [n for n in CURVED if n.startswith(("gelu", "tanh", "sig", "layer", "l2", "scaled"))])
def test_remainders_of_smooth_layers_shrink_with_the_square(name) -> None:
    layer, shape = CURVED[name]
    x = draw(2, *shape)
    layer_bound = exact_layer_bound(built(layer), x)
    small, smaller = (random_perturbations(x, radius, 0.0, 0)[0] for radius in (1e-3, 1e-4))
    assert (layer_bound.remainder(smaller) <= 0.02 * layer_bound.remainder(small) + 1e-12).all()
    a = draw(2, 3, *built(layer)(x).shape[1:])
    assert (layer_bound.remainder_along(a, smaller) <= 0.02 * layer_bound.remainder_along(a, small) + 1e-12).all()


@pytest.mark.parametrize(("layer", "shape"), LINEAR, ids=lambda v: str(v))
def test_linear_steps_push_exactly_and_their_constants_are_above_the_exact_norm_and_close(layer, shape) -> None:
    layer, x = built(layer), draw(2, *shape)
    layer_bound, moves = exact_layer_bound(layer, x), draw(5, 2, *shape)
    assert type(layer_bound) is LayerBound
    moved = torch.stack([layer(x + move) - layer(x) for move in moves])
    assert torch.allclose(layer_bound.jvp(moves), moved, atol=1e-12)
    exact = jacobian_norm(layer, x[:1])
    assert exact <= lipschitz_constant(layer, x) <= exact * (1.35 if isinstance(layer, nn.Conv2d) else 1 + 1e-8)
    assert_plain(layer, x)


def assert_plain(layer: nn.Module, x: torch.Tensor) -> None:
    """Check that bound propagation sees the same function, in operations that it knows, where there are such."""
    if type(layer) not in plain.registry:
        return
    written = plain(layer)
    assert torch.allclose(written(x), layer(x), rtol=1e-12, atol=1e-12)
    assert not any(type(part) in REWRITTEN for part in written.modules())


REWRITTEN = {*plain.registry} - {object, nn.Sequential, Residual, WeightedResidual, Resize}


@pytest.mark.parametrize("name", ["GELU", "TANH_GELU", "TANH", "SIGMOID"])
def test_the_tables_of_extremes_are_complete(name) -> None:
    """f'' is the derivative of f', and over random intervals no value of either lies outside the extremes found."""
    f = getattr(activations, name)
    z = torch.linspace(-9, 9, 20001, dtype=torch.float64, requires_grad=True)
    (second,) = torch.autograd.grad(f.slope(z).sum(), z)
    assert torch.allclose(second, f.curvature(z), atol=1e-12)
    ends = torch.sort(6 * draw(300, 2), dim=1).values
    inside = ends[:, :1] + (ends[:, 1:] - ends[:, :1]) * torch.linspace(0, 1, 500, dtype=torch.float64)
    for function, turns in ((f.slope, f.flat_slope), (f.curvature, f.flat_curvature)):
        least, most = activations._extremes(function, turns, ends[:, 0], ends[:, 1])
        assert (function(inside).amin(1) >= least).all()
        assert (function(inside).amax(1) <= most).all()
        assert (function(inside).amax(1) >= most - 0.2 * (ends[:, 1] - ends[:, 0]) ** 2 - 1e-6).all()


def test_weighted_squares_are_exact_without_a_rest_and_above_with_one() -> None:
    x = draw(3, 8)
    for count, rest in ((4, 0.0), (4, 0.5), (12, 0.0), (12, 0.5)):
        perturbation, _ = random_perturbations(x, 1.0, rest, 0)
        columns = draw(count, 3, 8)
        perturbation = type(perturbation)(columns, perturbation.radius, perturbation.rho, perturbation.delta + 100)
        weight = draw(3, 2, 8).abs()
        form = weight.sqrt()[..., None] * columns.permute(1, 2, 0)[:, None]
        exact = (torch.linalg.matrix_norm(form, ord=2) + rest * weight.amax(2).sqrt()) ** 2
        assert torch.allclose(perturbation.weighted_squares(weight), exact, rtol=1e-8)
        assert (perturbation.weighted_squares(weight) >= exact).all()


@pytest.mark.parametrize(
    ("layer", "shape", "share"),
    [
        (nn.LayerNorm(8), (3, 8), 0.02),
        (L2Attention(8, 2), (3, 8), 0.5),
        (L2WindowAttention(4, 2, side=4, window=2, shift=1), (16, 4), 0.5),
        (ScaledCosineAttention(32, 4, eps=0.01), (17, 32), 0.02),
    ],
    ids=lambda v: type(v).__name__,
)
def test_local_constants_are_far_below_the_global_ones_and_never_above(layer, shape, share) -> None:
    layer, x = layer.double().requires_grad_(False), draw(4, *shape)
    for radius, most in ((1e-3, share), (1e3, 1.0)):
        delta = torch.full((4,), radius, dtype=torch.float64)
        assert (exact_layer_bound(layer, x).bound(delta) <= most * lipschitz_constant(layer, x) * delta).all()


def test_a_residual_rounds_by_its_input_and_its_branch() -> None:
    layer = built(Residual(nn.Linear(4, 4)))
    x, still = draw(3, 2, 4), torch.zeros(3).double()
    parts = x.flatten(1).norm(dim=1) + layer.body(x).flatten(1).norm(dim=1)
    inside = exact_layer_bound(layer.body, x).rounding(still)
    assert (exact_layer_bound(layer, x).rounding(still) >= inside + 2.0**-24 * parts).all()


@pytest.mark.sweep
@pytest.mark.parametrize(("layer", "shape"), [*CURVED.values(), *LINEAR], ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("scale", few([1.0], [0.1, 10.0]))
def test_no_layer_rounds_more_than_its_bound(layer, shape, scale) -> None:
    """Every float32 layer against its float64 copy on float32 inputs off the nominal ones."""
    single = copy.deepcopy(built(layer, 3)).float()
    exact = copy.deepcopy(single).double()
    x = (scale * draw(80, *shape)).float()
    moved = x + 0.1 * draw(80, *shape, seed=1).float()
    delta = (moved.double() - x.double()).flatten(1).norm(dim=1)
    layer_bound = exact_layer_bound(exact, x.double())
    for at, budget in ((x, torch.zeros_like(delta)), (moved, delta)):
        rounding = layer_bound.rounding(budget)
        assert (rounding < torch.inf).all()
        if not isinstance(layer, nn.Sequential | Residual | WeightedResidual):  # a sequence's rounding is in its bound
            assert ((single(at).double() - exact(at.double())).flatten(1).norm(dim=1) <= rounding).all()
        strayed = (single(at).double() - exact(x.double())).flatten(1).norm(dim=1)
        assert (strayed <= layer_bound.bound(budget) * (1 + 1e-12) + rounding).all()


@pytest.mark.parametrize(
    "layer",
    [nn.GELU(), nn.GELU("tanh"), nn.Tanh(), nn.Sigmoid(), nn.Softplus(), nn.Softplus(3.0), nn.LeakyReLU(0.1)],
    ids=str,
)
def test_activations_round_each_entry_within_their_bound(layer) -> None:
    """Single entries from the deep tails to 0, where a relative bound is hardest; contiguous and not."""
    z = torch.cat([torch.linspace(-30, 30, 40001), torch.logspace(-30, 2, 2000), -torch.logspace(-30, 2, 2000)])
    for x in (z, torch.stack([z, z], dim=1)[:, 0]):
        error = (layer(x).double() - layer(x.double())).abs()
        assert (error <= exact_layer_bound(layer, x.double()[:, None]).rounding(torch.zeros(len(x)).double())).all()


@pytest.mark.parametrize("norm", [nn.LayerNorm(8), LayerProject(1.0)], ids=["layernorm", "projection"])
def test_float32_margins_of_a_vit_stay_within_the_error_analysis(norm) -> None:
    for seed in range(3):
        model, images = vit(seed, norm), torch.rand(50, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
        measured, allowed = float32_gap(model, images, model(images).argmax(1))
        assert 0 < measured <= allowed < 0.1
