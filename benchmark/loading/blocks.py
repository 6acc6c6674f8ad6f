"""The encoder blocks of a submission's model: those that its method.py names, else those that can be recognised.

A file of its own, so that only what asks for blocks depends on it.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from benchmark.analysis.blocks import block_inputs, default_blocks
from benchmark.loading import methods, own_code, submissions
from benchmark.runtime.errors import BenchmarkError, said


def blocks(submission: str, model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The blocks of a model that this submission's method.py built, in order, by name: `blocks(model)` of method.py where
    it defines one, else `default_blocks`.

    Raises:
        BenchmarkError: method.py's fails or returns something else than a list of (name, module) with distinct names; or it
            defines none and no block is recognised.
    """
    path = submissions.FOLDER / submission / "method.py"
    own = getattr(methods.imported(submission), "blocks", None)
    if not callable(own):
        try:
            return default_blocks(model)
        except BenchmarkError as error:
            raise BenchmarkError(f"{path}: {error}") from None
    try:
        found = own(model)
    except BenchmarkError:
        raise
    except own_code.ANY as error:
        raise BenchmarkError(f"{own_code.place(path, error)}: blocks failed: {said(error)}") from error
    return _checked(found, path)


def check_blocks(submission: str, model: nn.Module, shape: tuple[int, int, int]) -> None:
    """A BenchmarkError where a model has no blocks, or one that is not called once or does not map tokens to tokens.

    Args:
        shape: of an image, (c, h, w); a grey one is tried.
    """
    block_inputs(model, blocks(submission, model), torch.full((1, *shape), 0.5))


def _checked(found: object, path: Path) -> list[tuple[str, nn.Module]]:
    wanted = f"{path}: blocks(model) must return a list of (name, module)"
    if not isinstance(found, list) or not found:
        raise BenchmarkError(f"{wanted}, not {'an empty one' if found == [] else type(found).__name__}")
    for place, entry in enumerate(found, 1):
        if not isinstance(entry, tuple) or len(entry) != 2 or not isinstance(entry[0], str):
            raise BenchmarkError(f"{wanted}; entry {place} is none")
        if not isinstance(entry[1], nn.Module):
            raise BenchmarkError(f"{wanted}; {entry[0]!r} is {type(entry[1]).__name__}, not a torch module")
    names = [name for name, _ in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BenchmarkError(f"{path}: blocks(model) returns the name {twice!r} twice; names must differ")
    return found
