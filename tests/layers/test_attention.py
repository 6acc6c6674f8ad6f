"""Attention layers compared with their formulas, and their weights by role and head."""

from __future__ import annotations

import copy
import warnings

import pytest
import timm
import torch
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import VisionTransformer
from tiny_layers import built, draw
from torch import nn

from benchmark.layers.attention import LEAST, LipschitzNormAttention, ResidualAttention, SelfAttention
from benchmark.layers.attention_grid import GridAttention
from benchmark.layers.attention_l2 import L2Attention
from benchmark.layers.attention_weights import AttentionWeights, attention_weights
from benchmark.layers.attention_window import DotProductWindowAttention
from benchmark.layers.residual import Residual, WeightedResidual
from benchmark.layers.scaled_cosine import CenterNorm, ScaledCosineAttention
from benchmark.runtime.errors import BenchmarkError


def scaled_cosine(layer, x, w_q, w_k, w_v, w_o):
    q, k, v = (x @ w / ((x @ w).norm(dim=-1, keepdim=True) ** 2 + layer.eps).sqrt() for w in (w_q, w_k, w_v))
    return layer.nu * (layer.tau * q @ k.mT).softmax(-1) @ v @ w_o


def l2(layer, x, w_q, w_v, w_o):
    y, scale = x @ w_q, w_q.shape[1] ** 0.5
    weights = (-((y[:, :, None] - y[:, None]) ** 2).sum(-1) / scale).softmax(-1)
    return weights @ x @ (w_q @ w_q.mT / scale) @ w_v @ w_o


def lipschitz_norm(layer, x, w_q, w_k, w_v, w_o):
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    sizes = q.flatten(1).norm(dim=1), k.norm(dim=2).amax(1), v.norm(dim=2).amax(1)
    divisor = torch.stack([sizes[0] * sizes[1], sizes[0] * sizes[2], sizes[1] * sizes[2]]).amax(0)
    return (q @ k.mT / divisor[:, None, None]).softmax(-1) @ v @ w_o


def dot_product(layer, x, w_q, w_k, w_v, w_o):
    return ((x @ w_q) @ (x @ w_k).mT / w_q.shape[1] ** 0.5).softmax(-1) @ x @ w_v @ w_o


def residual(layer, x, *weights):
    return dot_product(layer, x, *weights) + x / layer.heads


def without_biases(layer: nn.Module) -> nn.Module:
    for name, parameter in layer.named_parameters():
        if name.endswith("bias"):
            parameter.data.zero_()
    return layer


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize(
    ("make", "formula"),
    [
        (lambda heads: ScaledCosineAttention(8, heads, eps=1e-3), scaled_cosine),
        (lambda heads: ScaledCosineAttention(8, heads, eps=2.0), scaled_cosine),
        (lambda heads: L2Attention(8, heads), l2),
        (lambda heads: LipschitzNormAttention(8, heads), lipschitz_norm),
        (lambda heads: SelfAttention(8, heads), dot_product),
        (lambda heads: ResidualAttention(8, heads, qk_norm=1, vo_norm=1), residual),
    ],
)
def test_a_layer_is_the_sum_of_its_formula_over_heads(make, formula, heads) -> None:
    layer, x = without_biases(built(make(heads), heads)), draw(3, 5, 8)
    (weights,) = attention_weights(nn.Sequential(layer))
    parts = [part for part in (weights.query, weights.key, weights.value, weights.output) if part is not None]
    expected = sum(formula(layer, x, *of_head) for of_head in zip(*parts, strict=True))
    assert torch.allclose(layer(x), expected, atol=1e-12)


@pytest.mark.parametrize("scale", [0.0, LEAST, 1e-30])
def test_lipschitz_norm_attention_and_its_gradient_are_finite_near_zero(scale) -> None:
    layer = LipschitzNormAttention(4, 2)
    x = (draw(2, 3, 4) * scale).float().requires_grad_()
    layer(x).sum().backward()
    assert torch.isfinite(layer(x)).all()
    assert torch.isfinite(x.grad).all()


def test_scaled_cosine_attention_starts_with_weights_of_norm_one_and_eps_of_float32() -> None:
    layer = ScaledCosineAttention(8, 2, eps=0.1, nu=2.0, tau=12.0)
    assert (layer.nu.item(), layer.tau.item(), layer.eps) == (2.0, 12.0, float(torch.tensor(0.1)))
    for linear in (layer.query, layer.key, layer.value, layer.output):
        assert linear.bias is None
        assert torch.linalg.matrix_norm(linear.weight.detach(), ord=2) == pytest.approx(1.0, abs=1e-5)
    layer(torch.randn(2, 3, 8)).sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())  # nu and tau learn


@pytest.mark.parametrize("width", [2, 3, 16])
def test_center_norm_is_its_formula_and_bounded_by_its_norm(width) -> None:
    layer = built(CenterNorm(width))
    x = draw(4, 3, width)
    mean = x.sum(-1, keepdim=True) / width
    assert torch.allclose(layer(x), layer.gamma * (x - mean) * width / (width - 1) + layer.beta, atol=1e-12)
    matrix = (layer(torch.eye(width, dtype=torch.float64)) - layer.beta).mT
    most = width / (width - 1) * layer.gamma.abs().max()
    assert torch.linalg.matrix_norm(matrix, ord=2) <= most * (1 + 1e-12)


def test_a_weighted_residual_is_its_formula_and_starts_with_its_initial_weight() -> None:
    layer = WeightedResidual(nn.Linear(4, 4), 4, initial=0.1)
    assert torch.equal(layer.alpha, torch.full((4,), 0.1))
    assert torch.equal(WeightedResidual(nn.Identity(), 3).alpha, torch.full((3,), 0.2))
    x, alpha = torch.randn(2, 3, 4), torch.tensor([0.0, 1.0, -2.0, 0.5])
    layer.alpha.data = alpha
    assert torch.allclose(layer(x), x + alpha * layer.body(x))


def grid_of(*, content: float = 0.5) -> GridAttention:
    torch.manual_seed(0)
    layer = GridAttention(8, 2, inner=3, side=3, content=content).double().eval().requires_grad_(False)
    layer.table.copy_(torch.randn(layer.table.shape))
    for part in (layer.query, layer.key, layer.value, layer.output):
        part.bias.copy_(0.1 * torch.randn(part.bias.shape))
    return layer


def test_a_network_in_training_can_be_copied() -> None:
    """What a forward pass keeps for an objective holds the graph, which no copy can have."""
    layer = grid_of().train().requires_grad_(True)
    layer(torch.rand(2, 9, 8, dtype=torch.float64))
    assert layer.kept is not None
    assert copy.deepcopy(layer).kept is None


def test_grid_attention_is_its_formula_pair_by_pair_and_training_keeps_its_parts() -> None:
    layer, x = grid_of(), torch.randn(2, 9, 8, dtype=torch.float64)
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
    expected = layer.output(mixed.flatten(2))
    assert layer.content.tolist() == pytest.approx([0.5, 0.5])
    assert torch.allclose(layer(x), expected)
    assert layer.kept is None
    assert torch.allclose(layer.train()(x), expected)
    assert torch.allclose(layer.projected(layer.kept.mixed), expected)
    (weights,) = attention_weights(nn.Sequential(without_biases(layer.eval())))
    scores = layer.content[:, None, None] * (x[:, None] @ weights.query) @ (x[:, None] @ weights.key).mT
    attended = (scores + layer.table[:, layer.places]).softmax(-1) @ x[:, None] @ weights.value @ weights.output
    assert torch.allclose(attended.sum(1), layer(x))


def test_grid_attention_without_content_moves_with_the_image_and_lengthens_no_move() -> None:
    layer, x = grid_of(content=1e-300), torch.randn(2, 9, 8, dtype=torch.float64)

    def rolled(y: torch.Tensor) -> torch.Tensor:
        return y.unflatten(1, (3, 3)).roll((1, 2), (1, 2)).flatten(1, 2)

    assert torch.allclose(layer(rolled(x)), rolled(layer(x)))
    move = torch.randn(200, 9, 8, dtype=torch.float64)
    change = layer(x[:1] + move) - layer(x[:1])
    assert (change.flatten(1).norm(dim=1) <= move.flatten(1).norm(dim=1) * (1 + 1e-9)).all()


def test_heads_of_grid_attention_start_at_their_own_places_and_evaluation_rounds_once() -> None:
    layer = GridAttention(26, 13, inner=1, side=5, content=1e-9)
    weights = layer.mixing(torch.randn(1, 25, 26)).weights[0]
    assert weights[:, 12].argmax(1).tolist() == [12, 13, 11, 17, 7, 18, 6, 16, 8, 14, 10, 22, 2]
    assert (weights[:, 12].amax(1) > 0.9).all()
    layer, x = grid_of().float(), 30 * torch.randn(4, 9, 8)
    exact = layer.double()(x.double())
    assert torch.equal(layer.float()(x), exact.float())


def timm_vit() -> VisionTransformer:
    return VisionTransformer(img_size=8, patch_size=4, in_chans=1, num_classes=3, embed_dim=12, depth=2, num_heads=3)


def test_timms_fused_weight_is_cut_by_rows_and_then_by_heads() -> None:
    model = timm_vit().double()
    first, second = attention_weights(model)
    assert (first.name, second.name) == ("attention 1", "attention 2")
    attn, x = without_biases(model.blocks[1].attn), draw(2, 5, 12)
    heads = zip(second.query, second.key, second.value, second.output, strict=True)
    assert torch.allclose(attn(x), sum(dot_product(None, x, *weights) for weights in heads), atol=1e-12)


def equal_by_role(weights: AttentionWeights, expected) -> bool:
    return all(torch.equal(weights.role(role), tensor) for role, tensor in expected.items())


def test_attention_in_windows_has_the_weights_of_its_content_as_timms_swin() -> None:
    layer, norm = DotProductWindowAttention(6, 2, side=4, window=2), nn.LayerNorm(6)
    (weights,) = attention_weights(nn.Sequential(norm, layer))
    assert weights.gamma is norm.weight
    roles = ("query", "key", "value", "output")
    assert equal_by_role(weights, dict(zip(roles, layer.content.head_weights(), strict=True)))
    options = {"img_size": 8, "patch_size": 2, "in_chans": 1, "embed_dim": 8, "window_size": 2}
    model = SwinTransformer(depths=(2, 1), num_heads=(2, 4), num_classes=3, **options)
    layers = attention_weights(model)
    assert [(*layer.query.shape,) for layer in layers] == [(2, 8, 4), (2, 8, 4), (4, 16, 4)]
    for weights, block in zip(layers, [*model.layers[0].blocks, *model.layers[1].blocks], strict=True):
        assert weights.gamma is block.norm1.weight
        parts = block.attn.qkv.weight.unflatten(0, (3, len(weights.query), -1)).mT  # rows of each head's own outputs
        assert equal_by_role(weights, dict(zip(roles[:3], parts, strict=True)))


def test_weights_have_the_norm_in_front_and_gradients_that_reach_parameters() -> None:
    norm, layer = nn.LayerNorm(4), L2Attention(4, 2)
    model = nn.Sequential(Residual(nn.Sequential(norm, SelfAttention(4, 2))), layer, nn.Flatten())
    behind, bare = attention_weights(model)
    assert behind.gamma is norm.weight
    assert bare.gamma is None
    assert bare.key is None
    bare.query.square().sum().backward()
    assert layer.query.weight.grad is not None
    timm_model = timm_vit()
    assert attention_weights(timm_model)[1].gamma is timm_model.blocks[1].norm1.weight


TIMM = ["convit_tiny", "tiny_vit_5m_224", "swinv2_tiny_window8_256", "cait_xxs24_224", "xcit_nano_12_p16_224"]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        *((lambda name=name: timm.create_model(name), "is not known here; define attention") for name in TIMM),
        (lambda: nn.Sequential(SelfAttention(4, 2), nn.MultiheadAttention(4, 2)), "MultiheadAttention is not known"),
        (lambda: nn.Linear(3, 3), r"Linear has no attention layer .* define attention\(model\) in method"),
    ],
    ids=[*TIMM, "pytorch", "none"],
)
def test_attention_of_unknown_types_is_refused_not_guessed(make, reason) -> None:
    """timm's have heads first in the fused weight, no fused weight, the norm behind, or other attention beside it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make()
    with pytest.raises(BenchmarkError, match=reason):
        attention_weights(model)
