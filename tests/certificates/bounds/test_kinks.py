"""ReLUs clipped and smoothed: every unit by a grid over its cases, whole layers by random moves."""

from __future__ import annotations

import itertools

import pytest
import torch
from tiny_layers import draw

from benchmark.certificates.bounds.layer_bound import PerturbationSet, exact_layer_bound
from benchmark.certificates.bounds.sll import SLLBound, SmoothSLLBound
from benchmark.layers.clipped_relu import ClippedReLU
from benchmark.layers.lipschitz import SLLBlock, SmoothSLLBlock

THETAS = [-1.0, 0.0, 1e-6, 0.5, 1.0, 2.0]
PLACES = [-3.0, -1.0, -0.5, -1e-6, 0.0, 1e-6, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 4.0]
LARGEST = [0.0, 1e-6, 0.1, 0.5, 1.0, 1.75, 5.0]


def layer_of(thetas: torch.Tensor) -> ClippedReLU:
    layer = ClippedReLU(tuple(thetas.shape)).double().requires_grad_(False)
    layer.theta.copy_(thetas)
    return layer


def unit_ball(x: torch.Tensor, largest: torch.Tensor) -> PerturbationSet:
    """All moves with |D| <= largest (n,) of one unit an image, x (n, 1)."""
    return PerturbationSet(torch.ones(1, len(x), 1).double(), largest, torch.zeros_like(largest), largest)


@pytest.mark.parametrize("theta", THETAS)
def test_the_remainder_of_one_unit_lies_in_its_interval_and_fills_it(theta) -> None:
    """All places against all lengths, moves on a grid that holds the kinks: never outside; between the kinks the ends are met."""
    cases = torch.tensor(list(itertools.product(PLACES, LARGEST)), dtype=torch.float64)
    z, most = cases[:, :1], cases[:, 1]
    layer = layer_of(torch.tensor([theta], dtype=torch.float64))
    bound = exact_layer_bound(layer, z)
    shares = torch.linspace(-1, 1, 401, dtype=torch.float64)[:, None, None]
    kinks = torch.stack([-z, max(theta, 0.0) - z]).clamp(-most[:, None], most[:, None])
    moves = torch.cat([shares * most[:, None], kinks])
    moved = layer((z + moves).flatten(0, 1)).unflatten(0, moves.shape[:2]) - layer(z)
    missed = (moved - bound.jvp(moves))[..., 0]
    for sign in (1.0, -1.0):
        reached = (-sign * missed).amax(0)
        claimed = bound.remainder_along(torch.full((len(z), 1, 1), sign).double(), unit_ball(z, most))[:, 0]
        assert (reached <= claimed * (1 + 1e-9) + 1e-15).all()
        inside = ((z > 0) & (z < theta))[:, 0]
        assert torch.allclose(reached[inside], claimed[inside], atol=1e-11)
    assert (missed.abs().amax(0) <= bound.remainder(unit_ball(z, most)) * (1 + 1e-9) + 1e-15).all()


def test_a_constant_unit_and_a_unit_far_from_its_kinks_cost_nothing() -> None:
    z, thetas = torch.tensor([[-1.0, 0, 3, 5, -5, 2]]).double(), torch.tensor([0.0, -2, -1, 1, 1, 4])
    bound = exact_layer_bound(layer_of(thetas), z)
    ball = PerturbationSet(torch.eye(6).double()[:, None], *(torch.tensor([r]).double() for r in (1.0, 0.0, 1.0)))
    assert bound.remainder(ball) == 0
    assert (bound.remainder_along(draw(1, 3, 6), ball) == 0).all()
    assert torch.equal(bound.slopes, torch.tensor([[0.0, 0, 0, 0, 0, 1]]).double())


@pytest.mark.parametrize("slope", [0.0, 0.5, 1.0])
def test_any_slope_at_a_kink_is_covered(slope) -> None:
    """What torch says at a tie may change; the remainder's bounds hold for every slope in [0, 1] there."""
    layer, z = layer_of(torch.tensor([0.5, 0.5, 2.0, 2.0])), torch.tensor([[0.0, 0.5, 0.0, 2.0]]).double()
    bound = exact_layer_bound(layer, z)
    for most in (0.1, 0.5, 1.0, 3.0):
        moves = torch.linspace(-most, most, 801, dtype=torch.float64)[:, None].expand(-1, 4)
        missed = layer(z + moves) - layer(z) - slope * moves
        lowered, raised = bound._bends(torch.full((1, 4), most, dtype=torch.float64))
        assert (-missed.amin(0) <= lowered[0] + 1e-12).all()
        assert (missed.amax(0) <= raised[0] + 1e-12).all()


def test_units_that_share_a_budget_lose_less_than_one_by_one() -> None:
    """100 units 0.1 away from both kinks, which a move of length 2 can carry past by 0.1 each, or one of them by 1.9."""
    x, layer = torch.full((1, 100), 0.1).double(), layer_of(torch.full((100,), 0.2))
    bound = exact_layer_bound(layer, x)
    ball = PerturbationSet(torch.eye(100).double()[:, None], *(torch.tensor([r]).double() for r in (2.0, 0.0, 2.0)))
    a = draw(1, 2, 100).sign()
    moves = 0.2 * a[0]
    taken = -(a[0] * (layer(x + moves) - layer(x) - moves)).sum(1)
    claimed = bound.remainder_along(a, ball)[0]
    assert torch.allclose(taken, torch.tensor(10.0).double())
    assert ((taken <= claimed) & (claimed < 0.2 * 1.9 * 100)).all()


def test_float32_clips_exactly_as_float64_does() -> None:
    """Thresholds that float64 could hold more precisely, inputs beside them: the same value, so rounding is 0."""
    layer = ClippedReLU((2000,)).requires_grad_(False)
    layer.theta.copy_(torch.randn(2000, generator=torch.Generator().manual_seed(0)) / 3)
    exact = layer_of(layer.theta.double())
    beside = torch.nextafter(layer.theta, torch.full_like(layer.theta, torch.inf))
    for z in (layer.theta.clone(), beside, -beside, torch.randn(2000, generator=torch.Generator().manual_seed(1))):
        assert torch.equal(layer(z[None]).double(), exact(z[None].double()))
    nothing = exact_layer_bound(exact, torch.zeros(3, 2000).double()).rounding(torch.ones(3).double())
    assert torch.equal(nothing, torch.zeros(3).double())


def block(bend: float, seed: int = 0) -> SmoothSLLBlock:
    torch.manual_seed(seed)
    layer = SmoothSLLBlock(5, 9, bend=bend).double().requires_grad_(False)
    for parameter in layer.parameters():
        parameter.copy_(torch.randn_like(parameter) * 2)
    return layer


@pytest.mark.parametrize("bend", [0.25, 1.0, 3.0])
def test_slopes_lie_in_0_to_1_and_the_relu_is_met_at_the_bend(bend) -> None:
    z = torch.linspace(-4, 4, 80001, dtype=torch.float64).requires_grad_()
    f = block(bend).active(z)
    (slope,) = torch.autograd.grad(f.sum(), z)
    assert 0 <= slope.min() <= slope.max() <= 1
    curvature = slope.diff() / z.detach().diff()
    assert -1e-9 <= curvature.min() <= curvature.max() <= 1 / (2 * bend) * (1 + 1e-6)
    gap = (f - torch.relu(z)).detach()
    assert gap[z.abs() >= bend].abs().max() == 0
    assert float(gap.max()) == pytest.approx(bend / 4)


@pytest.mark.parametrize("bend", [0.0, 0.05, 0.5, 4.0])
def test_each_neuron_s_remainder_lies_under_its_bound_and_its_parabola(bend) -> None:
    """All moves |D| <= m of single neurons, for ReLU (bend 0) and smooth ones."""
    layer = block(bend) if bend else SLLBlock(5, 9).double().requires_grad_(False)
    layer_bound = (SmoothSLLBound if bend else SLLBound)(layer, torch.randn(40, 3, 5, dtype=torch.float64))
    z, largest = layer_bound.z, 0.0
    for most in (0.01, 0.1, 0.5, 2.0, 20.0):
        m = torch.full_like(z, most)
        missed, (square, offset) = layer_bound._missed(m), layer_bound._parabola(m)
        for share in torch.linspace(-1, 1, 41, dtype=torch.float64):
            moved = share * most
            left = layer.active(z + moved) - layer.active(z) - layer_bound.slopes * moved
            assert (left >= -1e-12).all()
            assert (left <= missed * (1 + 1e-12) + 1e-13).all()
            under = torch.where(missed > 0, square * moved**2 + offset, 0.0)
            assert (left <= under * (1 + 1e-9) + 1e-13).all()
            largest = max(largest, float((left / under.clamp(min=1e-12)).max()))
    assert largest > 0.9
