"""LipsFormer's and LNFormer's layers against their formulas."""

from __future__ import annotations

import pytest
import torch
from tiny_layers import built, draw
from torch import nn

from benchmark.layers.attention import LEAST, LipschitzNormAttention
from benchmark.layers.residual import WeightedResidual
from benchmark.layers.scaled_cosine import CenterNorm, ScaledCosineAttention


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("eps", [1e-3, 2.0])
def test_scaled_cosine_attention_is_its_formula(heads, eps) -> None:
    layer = built(ScaledCosineAttention(8, heads, eps=eps), heads)
    x, found = draw(3, 5, 8), torch.zeros(3, 5, 8, dtype=torch.float64)
    for w_q, w_k, w_v, w_o in zip(*layer.head_weights(), strict=True):
        q, k, v = (x @ w / ((x @ w).norm(dim=-1, keepdim=True) ** 2 + layer.eps).sqrt() for w in (w_q, w_k, w_v))
        found += layer.nu * (layer.tau * q @ k.mT).softmax(-1) @ v @ w_o
    assert torch.allclose(layer(x), found, atol=1e-12)


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_lipschitz_norm_attention_is_its_formula(heads) -> None:
    layer = built(LipschitzNormAttention(8, heads), heads)
    x, found = draw(3, 5, 8), torch.zeros(3, 5, 8, dtype=torch.float64)
    for w_q, w_k, w_v, w_o in zip(*layer.head_weights(), strict=True):
        q, k, v = x @ w_q, x @ w_k, x @ w_v
        sizes = q.flatten(1).norm(dim=1), k.norm(dim=2).amax(1), v.norm(dim=2).amax(1)
        divisor = torch.stack([sizes[0] * sizes[1], sizes[0] * sizes[2], sizes[1] * sizes[2]]).amax(0)
        assert ((q @ k.mT).abs().amax((1, 2)) <= divisor).all()  # so that scores stay within 1
        found += (q @ k.mT / divisor[:, None, None]).softmax(-1) @ v @ w_o
    assert torch.allclose(layer(x), found, atol=1e-12)


@pytest.mark.parametrize("scale", [0.0, LEAST, 1e-30])
def test_lipschitz_norm_attention_and_its_gradient_are_finite_near_zero(scale) -> None:
    layer = LipschitzNormAttention(4, 2)
    x = (draw(2, 3, 4) * scale).float().requires_grad_()
    layer(x).sum().backward()
    assert torch.isfinite(layer(x)).all()
    assert torch.isfinite(x.grad).all()


def test_scaled_cosine_attention_starts_with_weights_of_norm_one_and_eps_of_float32() -> None:
    layer = ScaledCosineAttention(8, 2, eps=0.1, nu=2.0, tau=12.0)
    assert (layer.nu.item(), layer.tau.item()) == (2.0, 12.0)
    assert layer.eps == float(torch.tensor(0.1))
    assert all(linear.bias is None for linear in (layer.query, layer.key, layer.value, layer.output))
    for linear in (layer.query, layer.key, layer.value, layer.output):
        assert torch.linalg.matrix_norm(linear.weight.detach(), ord=2) == pytest.approx(1.0, abs=1e-5)
    layer(torch.randn(2, 3, 8)).sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())  # nu and tau learn


@pytest.mark.parametrize("width", [2, 3, 16])
def test_center_norm_is_its_formula_and_linear_but_for_its_shift(width) -> None:
    layer = built(CenterNorm(width))
    x = draw(4, 3, width)
    mean = x.sum(-1, keepdim=True) / width
    assert torch.allclose(layer(x), layer.gamma * (x - mean) * width / (width - 1) + layer.beta, atol=1e-12)
    assert torch.allclose(layer(x) - layer(torch.zeros_like(x)), layer(x + 1.5) - layer.beta, atol=1e-12)
    matrix = (layer(torch.eye(width, dtype=torch.float64)) - layer.beta).mT
    most = width / (width - 1) * layer.gamma.abs().max()
    assert torch.linalg.matrix_norm(matrix, ord=2) <= most * (1 + 1e-12)


def test_a_weighted_residual_is_its_formula_and_starts_where_told() -> None:
    layer = WeightedResidual(nn.Linear(4, 4), 4, initial=0.1)
    assert torch.equal(layer.alpha, torch.full((4,), 0.1))
    assert torch.equal(WeightedResidual(nn.Identity(), 3).alpha, torch.full((3,), 0.2))
    x = torch.randn(2, 3, 4)
    layer.alpha.data = torch.tensor([0.0, 1.0, -2.0, 0.5])
    assert torch.allclose(layer(x), x + torch.tensor([0.0, 1.0, -2.0, 0.5]) * layer.body(x))
