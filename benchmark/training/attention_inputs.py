"""An attention layer of a trained network as a function of tokens, and the tokens that it receives there."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmark.layers.timm_windows import is_swin_block, window_attention
from benchmark.runtime.errors import BenchmarkError


def layer_and_inputs(start: nn.Module, name: str, images: Tensor, batch_size: int) -> tuple[nn.Module, Tensor]:
    """The attention layer `name` of `start`, and what it receives for images: (images, tokens, width).

    timm's Swin hands its attention the windows of a grid; here its layer has them inside, as the layers of
    benchmark/layers/attention_window.py do, and receives the grid's tokens row by row.

    Raises:
        BenchmarkError: a layer of timm's Swin whose windows do not tile a square grid.
    """
    layer = start.get_submodule(name)
    block = start.get_submodule(name.rpartition(".")[0])
    seen: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0].detach()))
    try:
        in_batches(start, images, batch_size)
    finally:
        hook.remove()
    if not is_swin_block(block):
        return layer, torch.cat(seen)
    try:
        whole = window_attention(block)
    except ValueError as error:
        raise BenchmarkError(f"timm's Swin: {error}") from None
    return whole, whole.together(torch.cat(seen))


@torch.no_grad()
def in_batches(function: Callable[[Tensor], Tensor], x: Tensor, batch_size: int) -> Tensor:
    """The results of `function` on parts of x, joined."""
    return torch.cat([function(part) for part in x.split(batch_size)])
