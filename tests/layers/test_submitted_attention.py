"""A submission's own attention weights are checked against their interface; otherwise they are recognised."""

from __future__ import annotations

import re

import pytest
from torch import nn

from benchmark.layers.submitted_attention import attention
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import methods, submissions

NAME = "Tiny2026Own"
METHOD = """\
import torch
from torch import nn

from benchmark.layers.attention import SelfAttention
from benchmark.layers.attention_weights import AttentionWeights
from benchmark.layers.residual import Residual
from benchmark.layers.tokens import MeanPool, Patchify


class Mix(nn.Linear):
    pass


def build(data=None):
    attention = Residual(SelfAttention(16, 2))
    return nn.Sequential(Patchify(4), attention, Mix(16, 16), MeanPool(), nn.Linear(16, 10))


def weights(model, heads=2):
    return torch.zeros(heads, 16, 8) + model[4].weight.sum()
"""
ATTENTION = "\n\ndef attention(model):\n    w = weights(model)\n    return "


@pytest.fixture
def method(tmp_path, monkeypatch):
    """Writes method.py, METHOD with another end, and builds its model."""
    monkeypatch.setattr(submissions, "FOLDER", tmp_path / "submissions")
    folder = tmp_path / "submissions" / NAME
    folder.mkdir(parents=True)

    def write(end: str = "", text: str = METHOD) -> nn.Module:
        (folder / "method.py").write_text(text + end + "\n")
        return methods.method(NAME).build()

    return write


def test_without_its_own_they_are_those_recognised(method) -> None:
    (layer,) = attention(NAME, method())
    assert layer.name == "attention 1"
    assert layer.query.shape == (2, 16, 8)


def test_its_own_go_first_and_know_the_classes_of_the_model(method) -> None:
    mixes = "assert any(isinstance(module, Mix) for module in model)"
    model = method(ATTENTION.replace("w =", f"{mixes}\n    w =") + "[AttentionWeights('mine', w, None, w, None)]")
    (layer,) = attention(NAME, model)
    assert (layer.name, layer.key) == ("mine", None)
    assert layer.query.requires_grad


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("[]", "must return a list of AttentionWeights, not an empty one"),
        ("w", "must return a list of AttentionWeights, not Tensor"),
        ("[w]", "must return a list of AttentionWeights; entry 1 is Tensor"),
        ("[AttentionWeights('a', w, w, w[0], w)]", "'a': value has shape (16, 8); (heads, rows, columns) is due"),
        ("[AttentionWeights('a', w, w, None, w)]", "'a': value has shape NoneType"),
        ("[AttentionWeights('a', w, weights(model, 3), w, w)]", "'a': key has shape (3, 16, 8)"),
        ("[AttentionWeights('a', w, w, w, w)] * 2", "returns the name 'a' twice; names must differ"),
        ("model.encoder", "attention failed: AttributeError"),
        ("exit(0)", "attention failed: it calls sys.exit(0)"),
    ],
)  # fmt: skip
def test_its_own_are_checked_in_one_line(method, end, message) -> None:
    model = method(ATTENTION + end)
    with pytest.raises(BenchmarkError, match=re.escape(message)) as raised:
        attention(NAME, model)
    assert "method.py" in str(raised.value)


def test_where_none_is_recognised_the_file_and_what_to_define_are_named(method) -> None:
    model = method(text="from torch import nn\n\n\ndef build():\n    return nn.Flatten()\n")
    message = r"method\.py: Flatten has no attention layer that is known here; define attention\(model\)"
    with pytest.raises(BenchmarkError, match=message):
        attention(NAME, model)
