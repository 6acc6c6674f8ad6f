"""A submission's own attention weights, held to their interface; else those that are recognised."""

from __future__ import annotations

import re

import pytest

from benchmark.loading.attention import attention
from benchmark.runtime.errors import BenchmarkError

METHOD = """\
import torch
from torch import nn

from benchmark.layers.attention import SelfAttention
from benchmark.layers.attention_weights import AttentionWeights
from benchmark.layers.tokens import MeanPool, Patchify


def build(data=None):
    return nn.Sequential(Patchify(4), SelfAttention(16, 2), MeanPool(), nn.Linear(16, 10))


def weights(model, heads=2):
    return torch.zeros(heads, 16, 8) + model[3].weight.sum()
"""
OWN = "\n\ndef attention(model):\n    w = weights(model)\n    "


def test_without_its_own_they_are_those_recognised(method) -> None:
    (layer,) = attention("Tiny2026Own", method())
    assert layer.name == "attention 1"
    assert layer.query.shape == (2, 16, 8)


def test_its_own_go_first(method) -> None:
    model = method(OWN + "return [AttentionWeights('mine', w, None, w, None)]\n")
    (layer,) = attention("Tiny2026Own", model)
    assert layer.name == "mine"
    assert layer.key is None
    assert layer.query.requires_grad


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        ("return []", "must return a list of AttentionWeights, not an empty one"),
        ("return w", "must return a list of AttentionWeights, not Tensor"),
        ("return [w]", "must return a list of AttentionWeights; entry 1 is Tensor"),
        (
            "return [AttentionWeights('a', w, w, w[0], w)]",
            "'a': value has shape (16, 8); (heads, rows, columns) is due",
        ),
        ("return [AttentionWeights('a', w, w, None, w)]", "'a': value has shape NoneType"),
        ("return [AttentionWeights('a', w, weights(model, 3), w, w)]", "'a': key has shape (3, 16, 8)"),
        ("return [AttentionWeights('a', w, w, w, w)] * 2", "returns the name 'a' twice"),
        ("return 1 / 0", "attention failed: ZeroDivisionError"),
    ],
)
def test_what_it_returns_is_held_to_the_interface(method, returns, message) -> None:
    model = method(OWN + returns + "\n")
    with pytest.raises(BenchmarkError, match=re.escape(message)):
        attention("Tiny2026Own", model)


def test_a_model_without_attention_is_told_what_to_define(method) -> None:
    model = method(text=METHOD.replace("SelfAttention(16, 2)", "nn.Linear(16, 16)"))
    with pytest.raises(BenchmarkError, match=r"method\.py: Sequential has no attention layer that is known here"):
        attention("Tiny2026Own", model)
