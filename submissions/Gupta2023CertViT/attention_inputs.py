"""An attention layer of a trained network as a function of tokens, and the tokens that it receives."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmark.layers.attention_window import DotProductWindowAttention
from benchmark.runtime.errors import BenchmarkError

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)  # timm 1.0.9 decorates with torch.jit, which torch deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from timm.models.swin_transformer import SwinTransformerBlock


@torch.no_grad()
def window_attention(block: SwinTransformerBlock) -> DotProductWindowAttention:
    """Return the block's function between its first norm and its first sum, with copies of its weights.

    timm's own module, `block.attn`, receives single windows; the block cuts, rolls and masks.

    Raises:
        ValueError: the grid or its windows are not square, windows do not tile it (timm pads it with zeros), or the heads
            together are not as wide as the tokens.
    """
    attention = block.attn
    for part, (rows, columns) in (("grid", block.input_resolution), ("window", block.window_size)):
        if rows != columns:
            raise ValueError(f"the {part} has {rows}x{columns} tokens, where it should be square")
    qkv, biased = attention.qkv, attention.qkv.bias is not None
    inner, width = qkv.weight.shape[0] // 3, qkv.weight.shape[1]
    if inner != width:
        raise ValueError(f"heads are {inner} wide together, where the tokens are {width}")
    side, window, shift = block.input_resolution[0], block.window_size[0], block.shift_size[0]
    with torch.random.fork_rng(devices=[]):  # its initial weights are drawn, and replaced
        layer = DotProductWindowAttention(width, attention.num_heads, side=side, window=window, shift=shift, qkv_bias=biased)
    layer, content = layer.to(qkv.weight), layer.content
    for number, linear in enumerate((content.query, content.key, content.value)):
        linear.weight.copy_(qkv.weight.chunk(3)[number])
        if biased:
            linear.bias.copy_(qkv.bias.chunk(3)[number])
    content.output.load_state_dict(attention.proj.state_dict())
    layer.bias_table.copy_(attention.relative_position_bias_table)
    return layer.train(block.training)


def layer_and_inputs(start: nn.Module, name: str, images: Tensor, batch_size: int) -> tuple[nn.Module, Tensor]:
    """Return the attention layer `name` of `start`, and its inputs for images: (images, tokens, width).

    timm's Swin cuts the windows outside its attention layer. The layer returned here cuts them itself, as those of
    benchmark/layers/attention_window.py do, and receives the grid's tokens row by row.

    Raises:
        BenchmarkError: a layer of timm's Swin whose windows do not tile a square grid.
    """
    layer = start.get_submodule(name)
    block = start.get_submodule(name.rpartition(".")[0])
    seen: list[Tensor] = []
    with layer.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0].detach())):
        in_batches(start, images, batch_size)
    tokens = torch.cat(seen)
    if not isinstance(block, SwinTransformerBlock):  # version 1
        return layer, tokens
    try:
        whole = window_attention(block)
    except ValueError as error:
        raise BenchmarkError(f"timm's Swin: {error}") from None
    return whole, whole.together(tokens)


@torch.no_grad()
def in_batches(function: Callable[[Tensor], Tensor], x: Tensor, batch_size: int) -> Tensor:
    """Apply `function` to parts of x and join the results."""
    return torch.cat([function(part) for part in x.split(batch_size)])
