"""SLL blocks whose kink is rounded off: the activation, the constant 1, and what a parabola says of its remainder."""

from __future__ import annotations

import pytest
import torch

from benchmark.certificates.bounds.sll import SLLBound, SmoothSLLBound
from benchmark.layers.lipschitz import SLLBlock, SmoothSLLBlock


def block(bend: float, seed: int = 0) -> SmoothSLLBlock:
    torch.manual_seed(seed)
    layer = SmoothSLLBlock(5, 9, bend=bend).double().requires_grad_(False)
    for parameter in layer.parameters():
        parameter.copy_(torch.randn_like(parameter) * 2)
    return layer


@pytest.mark.parametrize("bend", [0.25, 1.0, 3.0])
def test_slopes_lie_in_0_to_1_and_the_relu_is_met_at_the_bend(bend) -> None:
    z = torch.linspace(-4, 4, 80001, dtype=torch.float64).requires_grad_()
    layer = block(bend)
    f = layer.active(z)
    (slope,) = torch.autograd.grad(f.sum(), z)
    assert slope.min() >= 0
    assert slope.max() <= 1
    curvature = slope.diff() / z.detach().diff()
    assert curvature.min() >= -1e-9
    assert curvature.max() <= 1 / (2 * bend) * (1 + 1e-6)
    gap = (f - torch.relu(z)).detach()
    assert gap[z.abs() >= bend].abs().max() == 0
    assert float(gap.max()) == pytest.approx(bend / 4)


@pytest.mark.parametrize("bend", [0.0, 0.05, 0.5, 4.0])
def test_each_neuron_s_remainder_lies_under_its_bound_and_its_parabola(bend) -> None:
    """All moves |D| <= m of single neurons, for ReLU (bend 0) and smooth ones."""
    layer = block(bend) if bend else SLLBlock(5, 9).double().requires_grad_(False)
    x = torch.randn(40, 3, 5, dtype=torch.float64)
    layer_bound = (SmoothSLLBound if bend else SLLBound)(layer, x)
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
