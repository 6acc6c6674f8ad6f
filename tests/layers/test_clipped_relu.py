"""The clipped ReLU: its values, its thresholds, its shape."""

from __future__ import annotations

import torch

from benchmark.layers.clipped_relu import ClippedReLU


def with_thresholds(*thresholds: float) -> ClippedReLU:
    layer = ClippedReLU((len(thresholds),))
    layer.theta.data = torch.tensor(thresholds)
    return layer


def test_outputs_stay_between_0_and_each_unit_s_threshold() -> None:
    z = torch.tensor([[-2.0, -0.5, 0.0], [0.3, 0.3, 0.3], [1.0, 1.0, 9.0]])
    expected = torch.tensor([[0.0, 0.0, 0.0], [0.3, 0.25, 0.0], [0.5, 0.25, 0.0]])
    assert torch.equal(with_thresholds(0.5, 0.25, 0.0)(z), expected)


def test_a_threshold_below_0_counts_as_0_and_gets_no_gradient() -> None:
    layer = with_thresholds(-1.0, 0.5)
    z = torch.tensor([[-2.0, -2.0], [0.2, 0.2], [3.0, 3.0]], requires_grad=True)
    out = layer(z)
    assert torch.equal(out, torch.tensor([[0.0, 0.0], [0.0, 0.2], [0.0, 0.5]]))
    out.sum().backward()
    assert torch.equal(layer.theta.grad, torch.tensor([0.0, 1.0]))  # where the output is the threshold
    assert torch.equal(z.grad, torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 0.0]]))


def test_a_threshold_for_each_unit_of_an_image() -> None:
    layer = ClippedReLU((2, 3, 4), initial=0.75)
    assert layer.theta.shape == (2, 3, 4)
    assert torch.equal(layer(torch.full((5, 2, 3, 4), 2.0)), torch.full((5, 2, 3, 4), 0.75))
    layer.theta.data[1, 2, 3] = 0.25
    out = layer(torch.ones(1, 2, 3, 4))
    assert out.amin() == out[0, 1, 2, 3] == 0.25
