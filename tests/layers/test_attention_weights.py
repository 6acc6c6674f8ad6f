"""Heads of attention's weights: each active alone, against the layer that runs."""

from __future__ import annotations

import warnings

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from benchmark.layers.attention import ResidualAttention, SelfAttention
from benchmark.layers.attention_l2 import L2Attention
from benchmark.layers.attention_weights import AttentionWeights, attention_weights
from benchmark.layers.residual import Residual
from benchmark.runtime.errors import BenchmarkError


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
