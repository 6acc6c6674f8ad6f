"""A submission's own blocks, held to their interface; else those that are recognised."""

from __future__ import annotations

import re

import pytest

from benchmark.loading.blocks import blocks, check_blocks
from benchmark.runtime.errors import BenchmarkError

METHOD = """\
from torch import nn

from benchmark.layers.residual import Residual
from benchmark.layers.tokens import MeanPool, Patchify


class Mix(nn.Linear):
    pass


def build(data=None):
    return nn.Sequential(Patchify(4), Residual(Mix(16, 16)), Mix(16, 16), MeanPool(), nn.Linear(16, 10))
"""
OWN = "\n\ndef blocks(model):\n    "


def test_without_its_own_they_are_those_recognised(method) -> None:
    model = method()
    assert blocks("Tiny2026Own", model) == [("residual 1", model[1])]
    check_blocks("Tiny2026Own", model, (1, 8, 8))


def test_its_own_know_the_classes_of_the_model(method) -> None:
    model = method(OWN + "return [('mix', module) for module in model if isinstance(module, Mix)]\n")
    assert blocks("Tiny2026Own", model) == [("mix", model[2])]


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        ("return []", "must return a list of (name, module), not an empty one"),
        ("return dict(model.named_children())", "must return a list of (name, module), not dict"),
        ("return [model[1]]", "must return a list of (name, module); entry 1 is none"),
        ("return [('a', model[1]), (1, model[2])]", "must return a list of (name, module); entry 2 is none"),
        ("return [('a', None)]", "must return a list of (name, module); 'a' is NoneType, not a torch module"),
        ("return [('a', model[1]), ('a', model[2])]", "returns the name 'a' twice; names must differ"),
        ("return [('a', model.encoder)]", "blocks failed: AttributeError"),
        ("raise SystemExit(0)", "blocks failed: it calls sys.exit(0)"),
    ],
)
def test_its_own_are_checked_in_one_line(method, returns, message) -> None:
    model = method(OWN + returns + "\n")
    with pytest.raises(BenchmarkError, match=re.escape(message)) as raised:
        blocks("Tiny2026Own", model)
    assert "method.py" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_where_none_is_recognised_the_file_and_what_to_define_are_named(method) -> None:
    model = method(text="from torch import nn\n\n\ndef build():\n    return nn.Flatten()\n")
    with pytest.raises(BenchmarkError, match=r"Tiny2026Own/method\.py: Flatten has no encoder block .*; define blocks"):
        blocks("Tiny2026Own", model)


def test_a_block_that_does_not_map_tokens_is_seen_at_a_grey_image(method) -> None:
    model = method(OWN + "return [('head', model[4])]\n")
    with pytest.raises(BenchmarkError, match="block 'head' gets"):
        check_blocks("Tiny2026Own", model, (1, 8, 8))
