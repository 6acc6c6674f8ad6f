"""A submission's own blocks and attention weights are checked against their interface; else they are recognised."""

from __future__ import annotations

import re

import pytest
from benchmark.layers.submitted.attention import attention
from benchmark.layers.submitted.blocks import blocks, check_blocks
from torch import nn

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
BLOCKS = "\n\ndef blocks(model):\n    return "
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
    model = method()
    assert blocks(NAME, model) == [("residual 1", model[1])]
    check_blocks(NAME, model, (1, 8, 8))
    (layer,) = attention(NAME, model)
    assert layer.name == "attention 1"
    assert layer.query.shape == (2, 16, 8)


def test_its_own_go_first_and_know_the_classes_of_the_model(method) -> None:
    own = ATTENTION + "[AttentionWeights('mine', w, None, w, None)]"
    model = method(BLOCKS + "[('mix', module) for module in model if isinstance(module, Mix)]" + own)
    assert blocks(NAME, model) == [("mix", model[2])]
    (layer,) = attention(NAME, model)
    assert (layer.name, layer.key) == ("mine", None)
    assert layer.query.requires_grad


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (BLOCKS + "[]", "must return a list of (name, module), not an empty one"),
        (BLOCKS + "dict(model.named_children())", "must return a list of (name, module), not dict"),
        (BLOCKS + "[model[1]]", "must return a list of (name, module); entry 1 is none"),
        (BLOCKS + "[('a', model[1]), (1, model[2])]", "must return a list of (name, module); entry 2 is none"),
        (BLOCKS + "[('a', None)]", "must return a list of (name, module); 'a' is NoneType, not a torch module"),
        (BLOCKS + "[('a', model[1]), ('a', model[2])]", "returns the name 'a' twice; names must differ"),
        (BLOCKS + "[('a', model.encoder)]", "blocks failed: AttributeError"),
        (BLOCKS + "exit(0)", "blocks failed: it calls sys.exit(0)"),
        (ATTENTION + "w", "must return a list of AttentionWeights, not Tensor"),
        (ATTENTION + "[w]", "must return a list of AttentionWeights; entry 1 is Tensor"),
        (ATTENTION + "[AttentionWeights('a', w, w, w[0], w)]", "'a': value has shape (16, 8); (heads, rows, columns) is due"),
        (ATTENTION + "[AttentionWeights('a', w, w, None, w)]", "'a': value has shape NoneType"),
        (ATTENTION + "[AttentionWeights('a', w, weights(model, 3), w, w)]", "'a': key has shape (3, 16, 8)"),
        (ATTENTION + "[AttentionWeights('a', w, w, w, w)] * 2", "returns the name 'a' twice"),
    ],
)  # fmt: skip
def test_its_own_are_checked_in_one_line(method, end, message) -> None:
    model = method(end)
    with pytest.raises(BenchmarkError, match=re.escape(message)) as raised:
        (blocks if end.startswith(BLOCKS) else attention)(NAME, model)
    assert "method.py" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_where_none_is_recognised_the_file_and_what_to_define_are_named(method) -> None:
    model = method(text="from torch import nn\n\n\ndef build():\n    return nn.Flatten()\n")
    with pytest.raises(BenchmarkError, match=r"Tiny2026Own/method\.py: Flatten has no encoder block .*; define blocks"):
        blocks(NAME, model)
    with pytest.raises(BenchmarkError, match=r"method\.py: Flatten has no attention layer that is known here"):
        attention(NAME, model)


def test_a_block_that_does_not_map_tokens_is_seen_at_a_grey_image(method) -> None:
    model = method(BLOCKS + "[('head', model[4])]")
    with pytest.raises(BenchmarkError, match="block 'head' gets"):
        check_blocks(NAME, model, (1, 8, 8))
