"""Attention in windows compared with timm's block and with its formula, token by token."""

from __future__ import annotations

import itertools

import pytest
import torch
from timm.models.swin_transformer import SwinTransformerBlock
from tiny_layers import built, draw
from torch import nn

from benchmark.layers.attention_l2 import L2Attention
from benchmark.layers.attention_window import MASKED, DotProductWindowAttention, L2WindowAttention, WindowAttention
from benchmark.training.attention_inputs import window_attention

SHAPES = [(4, 2, 0), (4, 2, 1), (6, 3, 1), (8, 4, 2), (4, 4, 0), (3, 1, 0)]  # side, window, shift


def block_of(side: int, window: int, shift: int, **options) -> SwinTransformerBlock:
    """Return timm's block of three heads of width 4, with weights and biases of some size."""
    torch.manual_seed(0)
    block = SwinTransformerBlock(12, (side, side), num_heads=3, window_size=window, shift_size=shift, **options)
    for parameter in block.attn.parameters():
        nn.init.normal_(parameter, std=0.5)
    return block.eval().requires_grad_(False)


@pytest.mark.parametrize(("side", "window", "shift"), SHAPES)
@pytest.mark.parametrize("qkv_bias", [True, False])
def test_it_is_timms_with_timms_weights(side, window, shift, qkv_bias) -> None:
    block, x = block_of(side, window, shift, qkv_bias=qkv_bias), torch.randn(3, side**2, 12)
    expected = block._attn(x.unflatten(1, (side, side))).flatten(1, 2)
    assert expected.abs().mean() > 0.3
    layer = window_attention(block)
    assert (layer.content.query.bias is not None) == qkv_bias
    assert torch.allclose(layer(x), expected, atol=1e-5)
    windows = []
    block.norm1, block.mlp = nn.Identity(), nn.Identity()
    block.attn.register_forward_pre_hook(lambda _module, inputs: windows.append(inputs[0]))
    block(x.unflatten(1, (side, side)))
    assert torch.equal(windows[0], layer.windows(x)), "timm's windows, in timm's order"


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


def test_weights_are_copied_and_no_random_numbers_are_drawn() -> None:
    block = block_of(4, 2, 1)
    before = torch.get_rng_state()
    layer = window_attention(block.double())
    assert torch.equal(torch.get_rng_state(), before)
    assert layer.bias_table.dtype == torch.float64
    assert not layer.training
    layer.bias_table.data.zero_()
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
def test_timms_options_beyond_ours_are_refused(change, reason) -> None:
    options = {"dim": 12, "input_resolution": (4, 4), "num_heads": 3, "window_size": 2}
    with pytest.raises(ValueError, match=reason):
        window_attention(SwinTransformerBlock(**{**options, **change}))


def reached(layer: L2WindowAttention, token: int) -> set[int]:
    """Return the tokens on which one token's output depends by more than 1e-30."""
    jacobian = torch.autograd.functional.jacobian(lambda y: layer(y)[0, token], draw(1, 16, 8))[:, 0]
    return {*(jacobian.abs().amax((0, 2)) > 1e-30).nonzero()[:, 0].tolist()}


def test_the_mask_separates_tokens_of_opposite_edges_unless_a_bias_exceeds_it() -> None:
    layer = built(L2WindowAttention(8, 2, side=4, window=2, shift=1))
    assert [reached(layer, token) for token in (5, 0, 1)] == [{5, 6, 9, 10}, {0}, {1, 2}]
    layer.bias_table.fill_(200.0)
    layer.bias_table[4] = 0.0  # the diagonal
    assert reached(layer, 0) == {0, 3, 12, 15}


def test_it_learns_its_bias_and_keeps_no_tables_in_its_state() -> None:
    layer = L2WindowAttention(8, 2, side=4, window=2, shift=1)
    layer(torch.randn(2, 16, 8)).square().sum().backward()
    assert layer.bias_table.grad.abs().sum() > 0
    assert {name.split(".")[0] for name in layer.state_dict()} == {"bias_table", "content"}
