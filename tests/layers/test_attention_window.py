"""Swin's own windowed attention against timm's block, token by token and by its roles."""

from __future__ import annotations

import pytest
import torch
from timm.models.swin_transformer import SwinTransformer, SwinTransformerBlock
from tiny_layers import built, draw
from torch import nn

from benchmark.layers.attention_weights import attention_weights
from benchmark.layers.attention_window import MASKED, DotProductWindowAttention
from benchmark.training.attention_inputs import window_attention

SHAPES = [(4, 2, 0), (4, 2, 1), (6, 3, 1), (8, 4, 2), (4, 4, 0), (3, 1, 0)]  # side, window, shift


def block_of(side: int, window: int, shift: int, **options) -> SwinTransformerBlock:
    """timm's block of three heads of width 4, with weights and biases of some size."""
    torch.manual_seed(0)
    block = SwinTransformerBlock(12, (side, side), num_heads=3, window_size=window, shift_size=shift, **options)
    with torch.no_grad():
        for parameter in block.attn.parameters():
            nn.init.normal_(parameter, std=0.5)
    return block.eval().requires_grad_(False)


def between_norm_and_sum(block: SwinTransformerBlock, tokens: torch.Tensor) -> torch.Tensor:
    """What timm's block does to tokens (n, side^2, width) between its first norm and its first sum."""
    side = block.input_resolution
    return block._attn(tokens.unflatten(1, side)).flatten(1, 2)


@pytest.mark.parametrize(("side", "window", "shift"), SHAPES)
@pytest.mark.parametrize("qkv_bias", [True, False])
def test_it_is_timms_with_timms_weights(side, window, shift, qkv_bias) -> None:
    block, x = block_of(side, window, shift, qkv_bias=qkv_bias), torch.randn(3, side**2, 12)
    wanted = between_norm_and_sum(block, x)
    assert wanted.abs().mean() > 0.3
    found = window_attention(block)
    assert (found.content.query.bias is not None) == qkv_bias
    assert torch.allclose(found(x), wanted, atol=1e-5)
    norm, seen = nn.Identity(), []
    block.norm1, block.mlp = norm, nn.Identity()
    block.attn.register_forward_pre_hook(lambda _module, given: seen.append(given[0]))
    block(x.unflatten(1, (side, side)))
    assert torch.equal(seen[0], found.windows(x)), "timm's windows, in timm's order"


@pytest.mark.parametrize("shift", [0, 1])
def test_it_is_its_formula_pair_by_pair(shift) -> None:
    layer, x = built(DotProductWindowAttention(6, 2, side=4, window=2, shift=shift)), draw(2, 16, 6)
    heads = layer.content.heads
    query, key, value = (
        part(layer.windows(x)).unflatten(-1, (heads, -1))
        for part in (layer.content.query, layer.content.key, layer.content.value)
    )
    scores = torch.einsum("nihd,njhd->nhij", query, key) / 3**0.5
    for window in range(len(scores)):
        for i in range(4):
            for j in range(4):
                place = 3 * (i // 2 - j // 2 + 1) + i % 2 - j % 2 + 1
                scores[window, :, i, j] += layer.bias_table[place] + layer.mask[window % len(layer.mask), i, j]
    mixed = torch.einsum("nhij,njhd->nihd", scores.softmax(-1), value).flatten(2)
    assert torch.allclose(layer(x), layer.together(layer.content.output(mixed)), atol=1e-12)
    assert (layer.mask.min() == MASKED) == bool(shift)


def test_a_token_across_the_masked_border_hardly_counts() -> None:
    layer, x = built(DotProductWindowAttention(6, 2, side=4, window=2, shift=1)), draw(1, 16, 6)
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(layer(x)[0, 0].sum(), x)
    sizes = gradient[0].norm(dim=1)
    assert {*(sizes > 1e-30).nonzero()[:, 0].tolist()} == {0}, "four corners share a window, each alone"


def test_its_weights_by_role_are_those_of_its_content() -> None:
    layer, norm = DotProductWindowAttention(6, 2, side=4, window=2), nn.LayerNorm(6)
    (found,) = attention_weights(nn.Sequential(norm, layer))
    assert found.gamma is norm.weight
    for role, weight in zip(("query", "key", "value", "output"), layer.content.head_weights(), strict=True):
        assert torch.equal(found.role(role), weight)


def test_timms_swin_has_its_weights_by_role_too() -> None:
    options = {"img_size": 8, "patch_size": 2, "in_chans": 1, "embed_dim": 8, "window_size": 2}
    model = SwinTransformer(depths=(2, 1), num_heads=(2, 4), num_classes=3, **options)
    found = attention_weights(model)
    assert [(*layer.query.shape,) for layer in found] == [(2, 8, 4), (2, 8, 4), (4, 16, 4)]
    for layer, block in zip(found, [*model.layers[0].blocks, *model.layers[1].blocks], strict=True):
        assert layer.gamma is block.norm1.weight
        for role, weight in zip(
            ("query", "key", "value"), window_attention(block).content.head_weights(), strict=False
        ):
            assert torch.equal(layer.role(role), weight)


def test_weights_are_copied_and_no_random_numbers_are_drawn() -> None:
    block = block_of(4, 2, 1)
    torch.manual_seed(3)
    wanted = torch.rand(2)
    torch.manual_seed(3)
    found = window_attention(block.double())
    assert torch.equal(torch.rand(2), wanted)
    assert found.bias_table.dtype == torch.float64
    assert not found.training
    found.bias_table.data.zero_()
    assert block.attn.relative_position_bias_table.abs().min() > 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"input_resolution": (4, 6)}, "the grid has 4x6 tokens, where it should be square"),
        ({"window_size": (2, 4)}, "the window has 2x4 tokens"),
        ({"input_resolution": (5, 5)}, "windows of 2x2 tokens do not tile 5x5"),
        ({"head_dim": 8}, "heads are 24 wide together, where the tokens are 12"),
    ],
)
def test_what_timm_alone_can_do_is_refused_in_words(change, reason) -> None:
    options = {"dim": 12, "input_resolution": (4, 4), "num_heads": 3, "window_size": 2}
    with pytest.raises(ValueError, match=reason):
        window_attention(SwinTransformerBlock(**{**options, **change}))
