"""timm's Swin block as a window attention layer: its function, its windows, copies of its weights."""

from __future__ import annotations

import pytest
import torch
from timm.models.swin_transformer import SwinTransformerBlock
from torch import nn

from benchmark.specs.methods import module

window_attention = module("Gupta2023CertViT", "attention_inputs").window_attention
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
def test_it_is_timms_block_with_its_weights(side, window, shift, qkv_bias) -> None:
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
