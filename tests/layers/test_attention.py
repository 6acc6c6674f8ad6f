"""Attention layers against their formulas, and their weights by head, each active alone."""

from __future__ import annotations

import math
import warnings

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from tiny_layers import built, draw
from torch import nn

from benchmark.layers.attention import LEAST, LipschitzNormAttention, ResidualAttention, SelfAttention
from benchmark.layers.attention_grid import GridAttention
from benchmark.layers.attention_l2 import L2Attention
from benchmark.layers.attention_weights import AttentionWeights, attention_weights
from benchmark.layers.residual import Residual, WeightedResidual
from benchmark.layers.scaled_cosine import CenterNorm, ScaledCosineAttention
from benchmark.runtime.errors import BenchmarkError


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
def test_l2_attention_is_its_formula(heads) -> None:
    layer, x = built(L2Attention(8, heads)), draw(3, 5, 8)
    scale, found = (8 / heads) ** 0.5, torch.zeros_like(x)
    for w_q, w_v, w_o in zip(*layer.head_weights(), strict=True):
        y = x @ w_q
        weights = (-((y[:, :, None] - y[:, None]) ** 2).sum(-1) / scale).softmax(-1)
        found += weights @ x @ (w_q @ w_q.mT / scale) @ w_v @ w_o
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


def grid_of(seed: int = 0, *, side: int = 3, content: float = 0.5) -> GridAttention:
    torch.manual_seed(seed)
    layer = GridAttention(8, 2, inner=3, side=side, content=content).double().eval().requires_grad_(False)
    layer.table.copy_(torch.randn(layer.table.shape))
    for part in (layer.query, layer.key, layer.value, layer.output):
        part.bias.copy_(0.1 * torch.randn(part.bias.shape))
    return layer


def test_grid_attention_is_its_formula_pair_by_pair() -> None:
    layer = grid_of()
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    query, key, value = (part(x).unflatten(-1, (2, -1)) for part in (layer.query, layer.key, layer.value))
    mixed = torch.zeros(2, 9, 2, 4, dtype=torch.float64)
    for head in range(2):
        for i in range(9):
            scores = torch.zeros(2, 9, dtype=torch.float64)
            for j in range(9):
                down, right = (j // 3 - i // 3) % 3, (j % 3 - i % 3) % 3
                products = (query[:, i, head] * key[:, j, head]).sum(-1)
                scores[:, j] = layer.content[head] * products + layer.table[head, 3 * down + right]
            mixed[:, i, head] = torch.einsum("nj,njc->nc", scores.softmax(-1), value[:, :, head])
    assert torch.allclose(layer(x), layer.output(mixed.flatten(2)))


def test_its_matrices_by_head_are_those_that_act() -> None:
    layer, x = grid_of(), torch.randn(1, 9, 8, dtype=torch.float64)
    for part in (layer.query, layer.key, layer.value, layer.output):
        part.bias.zero_()
    (found,) = attention_weights(nn.Sequential(layer))
    total = torch.zeros_like(x)
    for head in range(2):
        scores = layer.content[head] * (x @ found.query[head]) @ (x @ found.key[head]).mT
        weights = (scores + layer.table[head, layer.places]).softmax(-1)
        total = total + weights @ x @ found.value[head] @ found.output[head]
    assert torch.allclose(total, layer(x))


def test_without_content_it_moves_with_the_image_and_no_length_grows() -> None:
    layer = grid_of(content=1e-300)
    x = torch.randn(2, 9, 8, dtype=torch.float64)

    def rolled(y: torch.Tensor) -> torch.Tensor:
        return y.unflatten(1, (3, 3)).roll((1, 2), (1, 2)).flatten(1, 2)

    assert torch.allclose(layer(rolled(x)), rolled(layer(x)))
    move = torch.randn(200, 9, 8, dtype=torch.float64)
    change = layer(x[:1] + move) - layer(x[:1])
    assert (change.flatten(1).norm(dim=1) <= move.flatten(1).norm(dim=1) * (1 + 1e-9)).all()


def test_heads_look_at_their_own_places_first() -> None:
    layer = GridAttention(26, 13, inner=1, side=5, content=1e-9)
    weights = layer.mixing(torch.randn(1, 25, 26)).weights[0]
    assert weights[:, 12].argmax(1).tolist() == [12, 13, 11, 17, 7, 18, 6, 16, 8, 14, 10, 22, 2]
    assert (weights[:, 12].amax(1) > 0.9).all()


def test_evaluation_rounds_once() -> None:
    layer = grid_of().float()
    x = 30 * torch.randn(4, 9, 8)
    exact = layer.double()(x.double())
    assert torch.equal(layer.float()(x), exact.float())


def test_training_computes_the_same_and_keeps_what_objectives_bound() -> None:
    layer, x = grid_of(), torch.randn(2, 9, 8, dtype=torch.float64)
    assert layer.kept is None
    evaluated = layer(x)
    layer.train()
    assert torch.allclose(layer(x), evaluated)
    assert torch.allclose(layer.projected(layer.kept.mixed), evaluated)
    assert torch.allclose(layer.kept.weights.sum(-1), torch.ones(2, 2, 9, dtype=torch.float64))
    assert math.isclose(float(layer.content[0]), 0.5, rel_tol=1e-6)


def by_formula(layer: AttentionWeights, x: torch.Tensor, inner: int) -> torch.Tensor:
    """Dot-product attention without biases from the weights by head."""
    total = torch.zeros_like(x)
    for query, key, value, output in zip(layer.query, layer.key, layer.value, layer.output, strict=True):
        scores = (x @ query) @ (x @ key).mT / inner**0.5
        total = total + scores.softmax(-1) @ x @ value @ output
    return total


def timm_vit() -> VisionTransformer:
    return VisionTransformer(img_size=8, patch_size=4, in_chans=1, num_classes=3, embed_dim=12, depth=2, num_heads=3)


@pytest.mark.parametrize("layer", [SelfAttention(12, 3), ResidualAttention(12, 3, qk_norm=1, vo_norm=1)], ids=str)
def test_the_layer_is_the_sum_over_its_heads(layer) -> None:
    layer = layer.double()
    for part in (layer.query, layer.key, layer.value, layer.output):
        if part.bias is not None:
            part.bias.data.zero_()
    x = torch.randn(2, 5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (found,) = attention_weights(nn.Sequential(layer))
    whole = layer(x) - (x if isinstance(layer, ResidualAttention) else 0)
    assert torch.allclose(whole, by_formula(found, x, 4), atol=1e-12)


def test_timms_fused_weight_is_cut_by_rows_and_then_by_heads() -> None:
    model = timm_vit().double()
    first, second = attention_weights(model)
    assert (first.name, second.name) == ("attention 1", "attention 2")
    attn = model.blocks[1].attn
    attn.qkv.bias.data.zero_()
    attn.proj.bias.data.zero_()
    x = torch.randn(2, 5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(attn(x), by_formula(second, x, 4), atol=1e-12)


@pytest.mark.parametrize("head", range(3))
@pytest.mark.parametrize("role", ["query", "key", "value"])
def test_one_active_head_is_found_alone(role, head) -> None:
    """Only one head of one role has a weight: its norm is the dense one, all others are 0."""
    model = timm_vit()
    attn = model.blocks[0].attn
    attn.qkv.weight.data.zero_()
    drawn = torch.randn(4, 12, generator=torch.Generator().manual_seed(1))
    start = 12 * ["query", "key", "value"].index(role) + 4 * head
    attn.qkv.weight.data[start : start + 4] = drawn
    layer = attention_weights(model)[0]
    for other in ("query", "key", "value"):
        norms = torch.linalg.matrix_norm(layer.role(other), ord=2)
        wanted = torch.zeros(3)
        if other == role:
            wanted[head] = torch.linalg.matrix_norm(drawn, ord=2)
        assert torch.allclose(norms, wanted, atol=1e-5)


def test_the_norm_in_front_is_found() -> None:
    norm = nn.LayerNorm(4)
    norm.weight.data = torch.tensor([1.0, 2.0, 3.0, 4.0])
    model = nn.Sequential(Residual(nn.Sequential(norm, SelfAttention(4, 2))), SelfAttention(4, 2), nn.Flatten())
    behind, bare = attention_weights(model)
    assert behind.gamma is norm.weight
    assert bare.gamma is None
    timm = timm_vit()
    assert attention_weights(timm)[1].gamma is timm.blocks[1].norm1.weight


def test_gradients_reach_the_parameters_and_roles_that_are_not_there_are_none() -> None:
    layer = L2Attention(4, 2)
    (found,) = attention_weights(layer)
    assert found.key is None
    found.query.square().sum().backward()
    assert layer.query.weight.grad is not None


@pytest.mark.parametrize(
    "name", ["convit_tiny", "tiny_vit_5m_224", "swinv2_tiny_window8_256", "cait_xxs24_224", "xcit_nano_12_p16_224"]
)
def test_attention_that_cuts_its_weights_otherwise_is_refused_not_guessed(name) -> None:
    """Heads first in the fused weight, no fused weight, the norm behind, or other attention beside the known one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = timm.create_model(name)
    with pytest.raises(BenchmarkError, match="is not known here; define attention"):
        attention_weights(found)


def test_pytorchs_own_attention_is_refused() -> None:
    with pytest.raises(BenchmarkError, match="MultiheadAttention is not known here"):
        attention_weights(nn.Sequential(SelfAttention(4, 2), nn.MultiheadAttention(4, 2)))


def test_a_model_without_attention_is_told_what_to_define() -> None:
    with pytest.raises(
        BenchmarkError, match=r"Sequential has no attention layer .* define attention\(model\) in method"
    ):
        attention_weights(nn.Sequential(nn.Linear(3, 3)))
