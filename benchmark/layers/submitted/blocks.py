"""The encoder blocks of a submission's model, in a file of its own so that few steps depend on it."""

from __future__ import annotations

import torch
from torch import nn

from benchmark.layers.encoder_blocks import block_inputs, default_blocks
from benchmark.specs.methods import own_parts


def blocks(submission: str, model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the named blocks of a model that the submission built, in order.

    They come from `blocks(model)` of its method.py or, if it defines none, from `default_blocks`.

    Raises:
        BenchmarkError: method.py's function fails or does not return a list of (name, module) with distinct names; or it
            defines none and no block is recognised.
    """
    return own_parts(submission, model, "blocks", default_blocks, "(name, module)", _name)


def check_blocks(submission: str, model: nn.Module, shape: tuple[int, int, int]) -> None:
    """Raise a BenchmarkError if the model has no blocks, or a block is not called once or does not map tokens to tokens.

    Args:
        shape: of an image, (c, h, w); the check runs a grey one.
    """
    block_inputs(model, blocks(submission, model), torch.full((1, *shape), 0.5))


def _name(place: str, entry: object) -> str:
    if not isinstance(entry, tuple) or len(entry) != 2 or not isinstance(entry[0], str):
        raise ValueError(f"{place} is none")
    if not isinstance(entry[1], nn.Module):
        raise ValueError(f"{entry[0]!r} is {type(entry[1]).__name__}, not a torch module")
    return entry[0]
