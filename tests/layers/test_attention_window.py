"""Attention in windows against timm's block, token by token and by its roles, and its borders."""

from __future__ import annotations

import itertools

import pytest
import torch
from timm.models.swin_transformer import SwinTransformer, SwinTransformerBlock
from tiny_layers import built, draw
from torch import nn

from benchmark.layers.attention_l2 import L2Attention
from benchmark.layers.attention_weights import attention_weights
from benchmark.layers.attention_window import MASKED, DotProductWindowAttention, L2WindowAttention, WindowAttention
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


def mixed_pair_by_pair(layer: WindowAttention, cut: torch.Tensor) -> torch.Tensor:
    """softmax(scores + B + mask) times the values of windows (windows, 4, width), by the layer's own formula."""
    content = layer.content
    query, *key, value, output = content.head_weights()
    scale, x = query.shape[2] ** 0.5, cut[:, None]
    if isinstance(content, L2Attention):
        scores = -(x @ query)[..., None, :].sub((x @ query)[..., None, :, :]).square().sum(-1) / scale
        values = x @ (query @ query.mT / scale) @ value
    else:
        parts = ((content.query, query), (content.key, key[0]), (content.value, value))
        q, k, values = (x @ weight + part.bias.unflatten(0, (content.heads, 1, -1)) for part, weight in parts)
        scores = q @ k.mT / scale
    for window, i, j in itertools.product(range(len(cut)), range(4), range(4)):
        place = 3 * (i // 2 - j // 2 + 1) + i % 2 - j % 2 + 1
        scores[window, :, i, j] += layer.bias_table[place] + layer.mask[window % len(layer.mask), i, j]
    mixed = (scores.softmax(-1) @ values @ output).sum(1)
    return mixed if content.output.bias is None else mixed + content.output.bias


@pytest.mark.parametrize("kind", [DotProductWindowAttention, L2WindowAttention])
@pytest.mark.parametrize("shift", [0, 1])
def test_it_is_its_formula_pair_by_pair(kind, shift) -> None:
    layer, x = built(kind(6, 2, side=4, window=2, shift=shift)), draw(2, 16, 6)
    assert torch.allclose(layer(x), layer.together(mixed_pair_by_pair(layer, layer.windows(x))), atol=1e-12)
    assert (layer.mask.min() == MASKED) == bool(shift)


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


def layer_of(side: int, window: int, shift: int, heads: int = 2) -> L2WindowAttention:
    layer = built(L2WindowAttention(8, heads, side=side, window=window, shift=shift))
    assert isinstance(layer, L2WindowAttention)
    return layer


def test_one_window_without_bias_is_plain_l2_attention() -> None:
    layer, x = layer_of(3, 3, 0), draw(2, 9, 8)
    layer.bias_table.zero_()
    assert torch.allclose(layer(x), layer.content(x), atol=1e-14)
    layer.bias_table.normal_()
    assert not torch.allclose(layer(x), layer.content(x), atol=1e-3)


def reached(layer: L2WindowAttention, token: int) -> set[int]:
    """The tokens on which the output of one depends by more than 1e-30."""
    x = draw(1, layer.side**2, 8)
    jacobian = torch.autograd.functional.jacobian(lambda y: layer(y)[0, token], x)[:, 0]
    return {*(jacobian.abs().amax((0, 2)) > 1e-30).nonzero()[:, 0].tolist()}


def test_a_token_sees_its_window_and_nothing_across_the_masked_border() -> None:
    layer = layer_of(4, 2, 1)
    assert reached(layer, 5) == {5, 6, 9, 10}  # the middle window is whole
    assert reached(layer, 0) == {0}  # four corners share a window, each alone
    assert reached(layer, 1) == {1, 2}  # the upper edge shares one with the lower
    assert reached(layer, 4) == {4, 8}
    assert reached(layer_of(4, 2, 0), 0) == {0, 1, 4, 5}
    x, moved = draw(1, 16, 8), draw(1, 16, 8)
    moved[:, 1:3] = x[:, 1:3]
    assert torch.allclose(layer(x)[:, 1:3], layer(moved)[:, 1:3], atol=1e-14)


def test_a_mask_of_minus_hundred_is_no_wall_for_a_bias_of_two_hundred() -> None:
    layer = layer_of(4, 2, 1)
    layer.bias_table.fill_(200.0)
    layer.bias_table[4] = 0.0  # the diagonal
    assert reached(layer, 0) == {0, 3, 12, 15}


def test_it_learns_its_bias_and_keeps_no_tables_in_its_state() -> None:
    layer = L2WindowAttention(8, 2, side=4, window=2, shift=1)
    layer(torch.randn(2, 16, 8)).square().sum().backward()
    assert layer.bias_table.grad is not None
    assert layer.bias_table.grad.abs().sum() > 0
    assert {name.split(".")[0] for name in layer.state_dict()} == {"bias_table", "content"}
    assert isinstance(layer.content, L2Attention)
