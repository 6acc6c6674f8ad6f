"""The attention weights of a submission's model, in a file of its own so that few steps depend on it."""

from __future__ import annotations

import torch
from torch import nn

from benchmark.layers.attention_weights import ROLES, AttentionWeights, attention_weights
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import methods, submissions
from benchmark.specs.base import repeated


def attention(submission: str, model: nn.Module) -> list[AttentionWeights]:
    """Return the attention layers of a model that the submission built.

    They come from `attention(model)` of its method.py or, if it defines none, from `attention_weights`.

    Raises:
        BenchmarkError: method.py's function fails or does not return a list of AttentionWeights with distinct names and
            fitting shapes; or it defines none and no attention layer is recognised.
    """
    path = submissions.FOLDER / submission / "method.py"
    function = getattr(methods.imported(submission), "attention", None)
    if not callable(function):
        try:
            return attention_weights(model)
        except BenchmarkError as error:
            raise BenchmarkError(f"{path}: {error}") from None
    with methods.asked(path, "attention failed"):
        layers = function(model)
    due = f"{path}: attention(model) must return a list of AttentionWeights"
    if not isinstance(layers, list) or not layers:
        raise BenchmarkError(f"{due}, not {'an empty one' if layers == [] else type(layers).__name__}")
    for number, layer in enumerate(layers, 1):
        if not isinstance(layer, AttentionWeights):
            raise BenchmarkError(f"{due}; entry {number} is {type(layer).__name__}")
        if wrong := _wrong_shape(layer):
            raise BenchmarkError(f"{due}; {layer.name!r}: {wrong}")
    if (name := repeated([layer.name for layer in layers])) is not None:
        raise BenchmarkError(f"{path}: attention(model) returns the name {name!r} twice; names must differ")
    return layers


def _wrong_shape(layer: AttentionWeights) -> str:
    """Return which role's weight is not (heads, rows, columns) with as many heads as the query; "" if all are."""
    for role in ROLES:
        weight = layer.role(role)
        if weight is None and role in ("key", "output"):
            continue
        if not isinstance(weight, torch.Tensor) or weight.ndim != 3 or len(weight) != len(layer.query):
            shape = tuple(weight.shape) if isinstance(weight, torch.Tensor) else type(weight).__name__
            return f"{role} has shape {shape}; (heads, rows, columns) is due, with as many heads as the query"
    return ""
