"""The windowed attention of timm's Swin as one layer of the whole grid's tokens."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from benchmark.layers.attention_window import DotProductWindowAttention

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)  # timm 1.0.9 decorates with torch.jit, which torch deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from timm.models.swin_transformer import SwinTransformerBlock


def is_swin_block(module: nn.Module) -> bool:
    """Whether it is a block of timm's Swin (version 1), attention and MLP."""
    return isinstance(module, SwinTransformerBlock)


@torch.no_grad()
def window_attention(block: SwinTransformerBlock) -> DotProductWindowAttention:
    """What the block does between its first norm and its first sum, with copies of its weights.

    timm's own module, `block.attn`, is given windows one by one; the block cuts, rolls and masks.

    Raises:
        ValueError: the grid or its windows are not square, windows do not tile it (timm fills it up with zeros), or heads
            are not as wide as the width over their number.
    """
    attention = block.attn
    for what, (rows, columns) in (("grid", block.input_resolution), ("window", block.window_size)):
        if rows != columns:
            raise ValueError(f"the {what} has {rows}x{columns} tokens, where it should be square")
    inner, width = attention.qkv.weight.shape[0] // 3, attention.qkv.weight.shape[1]
    if inner != width:
        raise ValueError(f"heads are {inner} wide together, where the tokens are {width}")
    side, window, shift = block.input_resolution[0], block.window_size[0], block.shift_size[0]
    biased = attention.qkv.bias is not None
    with torch.random.fork_rng(devices=[]):  # its own first weights are drawn, and replaced
        made = DotProductWindowAttention(
            width, attention.num_heads, side=side, window=window, shift=shift, qkv_bias=biased
        )
    made, content = made.to(attention.qkv.weight), made.content
    for number, linear in enumerate((content.query, content.key, content.value)):
        linear.weight.copy_(attention.qkv.weight.chunk(3)[number])
        if biased:
            linear.bias.copy_(attention.qkv.bias.chunk(3)[number])
    content.output.load_state_dict(attention.proj.state_dict())
    made.bias_table.copy_(attention.relative_position_bias_table)
    return made.train(block.training)
