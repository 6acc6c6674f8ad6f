"""A model's encoder blocks, and the tokens that each receives at given images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmark.layers.attention import ResidualAttention
from benchmark.layers.lipschitz import SLLBlock
from benchmark.layers.residual import Residual, WeightedResidual
from benchmark.runtime.errors import BenchmarkError

Blocks = Sequence[tuple[str, nn.Module]]
Calls = dict[nn.Module, list[tuple[tuple[Any, ...], dict[str, Any]]]]  # positional and keyword arguments of each call
KINDS = {Residual: "residual", WeightedResidual: "residual", ResidualAttention: "attention", SLLBlock: "SLL"}
DEFINE = "define blocks(model) in method.py, returning a list of (name, module)"


@dataclass(frozen=True)
class BlockInput:
    """A block's input `tokens` (n, tokens, width), and the other arguments of its call, such as a grid's sides."""

    name: str
    module: nn.Module
    tokens: torch.Tensor
    rest: tuple[Any, ...]
    named: dict[str, Any]

    def at(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the block's output (m, tokens, width) at any m inputs of this shape."""
        return self.module(tokens, *self.rest, **self.named)


def default_blocks(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the encoder blocks in order, numbered from 1. Raise a BenchmarkError if there is none.

    In nested `nn.Sequential`s these are the residual maps of tokens in benchmark/layers ("attention 2", "SLL 3",
    "residual 4"), and in timm's vision transformers each of `blocks` ("block 1").
    """
    blocks = [(f"{word} {number}", module) for number, (word, module) in enumerate(_walk(model), 1)]
    if not blocks:
        raise BenchmarkError(f"{type(model).__name__} has no encoder block that is known here; {DEFINE}")
    return blocks


def _walk(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    if type(module) is nn.Sequential:
        for child in module:
            yield from _walk(child)
        return
    word = next((word for kind, word in KINDS.items() if isinstance(module, kind)), None)
    if word:
        yield word, module
    elif isinstance(inner := getattr(module, "blocks", None), nn.Sequential | nn.ModuleList):
        yield from (("block", block) for block in inner)


def block_inputs(model: nn.Module, blocks: Blocks, images: torch.Tensor) -> list[BlockInput]:
    """Return each block's input at `images` (n, c, h, w), by one pass.

    A plain `nn.Sequential` of modules that the model calls one after another begins at its first module.

    Raises:
        BenchmarkError: a block is not called exactly once, its input is not (n, tokens, width), or it takes another tensor
            beside it or changes its shape; the block is named.
    """
    calls: Calls = {}
    watched = {start for _, module in blocks for start in _starts(module)}
    hooks = [start.register_forward_pre_hook(partial(_note, calls), with_kwargs=True) for start in watched]
    try:
        with torch.no_grad():
            model(images)
    finally:
        for hook in hooks:
            hook.remove()
    return [_input(name, module, calls, len(images)) for name, module in blocks]


def _starts(module: nn.Module) -> list[nn.Module]:
    """Return the modules whose call shows the block's: itself, and the first module of a plain sequence."""
    starts = [module]
    while type(starts[-1]) is nn.Sequential and len(starts[-1]):
        starts.append(starts[-1][0])
    return starts


def _note(calls: Calls, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    copies = [value.detach().clone() if isinstance(value, torch.Tensor) else value for value in arguments[:1]]
    calls.setdefault(module, []).append(((*copies, *arguments[1:]), named))


def _input(name: str, module: nn.Module, calls: Calls, n: int) -> BlockInput:
    seen = next((calls[start] for start in _starts(module) if start in calls), [])
    if len(seen) != 1:
        how = f"called {len(seen)} times" if seen else "never called"
        raise BenchmarkError(f"block {name!r} is {how} when the model runs; each block must be called once")
    arguments, named = seen[0]
    tokens = arguments[0] if arguments else None
    if not isinstance(tokens, torch.Tensor) or tokens.ndim != 3 or len(tokens) != n:
        what = f"{tuple(tokens.shape)}" if isinstance(tokens, torch.Tensor) else type(tokens).__name__
        raise BenchmarkError(f"block {name!r} gets {what} for {n} images, not tokens (images, tokens, width); {DEFINE}")
    if any(isinstance(value, torch.Tensor) for value in (*arguments[1:], *named.values())):
        raise BenchmarkError(f"block {name!r} takes another tensor beside its tokens; {DEFINE}")
    block = BlockInput(name, module, tokens, arguments[1:], named)
    with torch.no_grad():
        out: object = block.at(tokens[:1])
    after = tuple(out.shape[1:]) if isinstance(out, torch.Tensor) else type(out).__name__
    if after != (before := tuple(tokens.shape[1:])):
        raise BenchmarkError(f"block {name!r} turns tokens of shape {before} into {after}; a block keeps the shape")
    return block
