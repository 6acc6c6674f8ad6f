"""The attention weights of a submission's model. A file of its own, so that only what asks for them depends on it."""

from __future__ import annotations

import torch
from torch import nn

from benchmark.layers.attention_weights import ROLES, AttentionWeights, attention_weights
from benchmark.specs.methods import own_parts


def attention(submission: str, model: nn.Module) -> list[AttentionWeights]:
    """The attention layers of a model that this submission's method.py built: `attention(model)` of method.py where it
    defines one, else `attention_weights`.

    Raises:
        BenchmarkError: method.py's fails or returns something else than a list of AttentionWeights with distinct names and
            fitting shapes; or it defines none and no attention layer is recognised.
    """
    return own_parts(submission, model, "attention", attention_weights, "AttentionWeights", _name)


def _name(place: str, layer: object) -> str:
    if not isinstance(layer, AttentionWeights):
        raise ValueError(f"{place} is {type(layer).__name__}")
    for role in ROLES:
        weight = layer.role(role)
        if weight is None and role in ("key", "output"):
            continue
        if not isinstance(weight, torch.Tensor) or weight.ndim != 3 or len(weight) != len(layer.query):
            shape = tuple(weight.shape) if isinstance(weight, torch.Tensor) else type(weight).__name__
            due = "(heads, rows, columns) is due, with as many heads as the query"
            raise ValueError(f"{layer.name!r}: {role} has shape {shape}; {due}")
    return layer.name
