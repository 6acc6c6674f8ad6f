"""What the steps of a row add to its Record, put together."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmark.runtime.errors import BenchmarkError
from benchmark.steps.collect import _joined

ROW = SimpleNamespace(name="Sub-v", submission=SimpleNamespace(division="closed"))


@pytest.mark.parametrize(
    ("other", "held"),
    [
        ("landlock, seccomp, namespaces, limits", "landlock, seccomp, namespaces, limits"),
        ("landlock, seccomp, limits", "landlock, seccomp, limits"),
        ("namespaces", "namespaces"),
        ("none", "none"),
    ],
)
def test_a_record_says_what_held_the_rows_code_in_every_step(other, held) -> None:
    parts = {"train": {"wall": "landlock, seccomp, namespaces, limits"}, "attack": {"wall": other}}
    assert _joined(ROW, parts)["wall"] == held
    assert _joined(ROW, dict(reversed(parts.items())))["wall"] == held


def test_steps_that_saw_different_models_make_no_record() -> None:
    with pytest.raises(BenchmarkError, match=r"attack and a step before it saw different models \(parameters\)"):
        _joined(ROW, {"train": {"parameters": 1}, "attack": {"parameters": 2}})
