"""The attention weights of a submission's model: those that its method.py names, else those that can be recognised.

A file of its own, so that only what asks for them depends on it.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from benchmark.layers.attention_weights import ROLES, AttentionWeights, attention_weights
from benchmark.loading import methods, own_code, submissions
from benchmark.runtime.errors import BenchmarkError, said


def attention(submission: str, model: nn.Module) -> list[AttentionWeights]:
    """The attention layers of a model that this submission's method.py built: `attention(model)` of method.py where it
    defines one, else `attention_weights`.

    Raises:
        BenchmarkError: method.py's fails or returns something else than a list of AttentionWeights with distinct names and
            fitting shapes; or it defines none and no attention layer is recognised.
    """
    path = submissions.FOLDER / submission / "method.py"
    own = getattr(methods.imported(submission), "attention", None)
    if not callable(own):
        try:
            return attention_weights(model)
        except BenchmarkError as error:
            raise BenchmarkError(f"{path}: {error}") from None
    try:
        found = own(model)
    except BenchmarkError:
        raise
    except own_code.ANY as error:
        raise BenchmarkError(f"{own_code.place(path, error)}: attention failed: {said(error)}") from error
    return _checked(found, path)


def _checked(found: object, path: Path) -> list[AttentionWeights]:
    wanted = f"{path}: attention(model) must return a list of AttentionWeights"
    if not isinstance(found, list) or not found:
        raise BenchmarkError(f"{wanted}, not {'an empty one' if found == [] else type(found).__name__}")
    for place, layer in enumerate(found, 1):
        if not isinstance(layer, AttentionWeights):
            raise BenchmarkError(f"{wanted}; entry {place} is {type(layer).__name__}")
        if problem := _problem(layer):
            raise BenchmarkError(f"{wanted}; {layer.name!r}: {problem}")
    names = [layer.name for layer in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BenchmarkError(f"{path}: attention(model) returns the name {twice!r} twice; names must differ")
    return found


def _problem(layer: AttentionWeights) -> str | None:
    """What is wrong with the shapes of one layer, in words."""
    for role in ROLES:
        weight = layer.role(role)
        if weight is None and role in ("key", "output"):
            continue
        if not isinstance(weight, torch.Tensor) or weight.ndim != 3 or len(weight) != len(layer.query):
            shape = tuple(weight.shape) if isinstance(weight, torch.Tensor) else type(weight).__name__
            return f"{role} has shape {shape}; (heads, rows, columns) is due, with as many heads as the query"
    return None
