"""The attention weights of a submission's model, in a file of its own so that few steps depend on it."""

from __future__ import annotations

import torch
from torch import nn

from benchmark.layers.attention_weights import ROLES, AttentionWeights, attention_weights
from benchmark.specs.methods import own_parts


def attention(submission: str, model: nn.Module) -> list[AttentionWeights]:
    """Return the attention layers of a model that the submission built.

    They come from `attention(model)` of its method.py or, if it defines none, from `attention_weights`.

    Raises:
        BenchmarkError: method.py's function fails or does not return a list of AttentionWeights with distinct names and
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
