"""Small steps: certify refuses, collect joins."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import tiny_linear_row
from stages import run_stage
from tiny_project import append

from benchmark.certificates import lipschitz
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


@pytest.mark.slow
def test_a_certificate_that_bounds_no_rounding_is_refused_in_words(linear_row, monkeypatch) -> None:
    append("submissions/Tiny2026Linear/submission.yaml", "        certificate: {name: lipschitz}\n")
    monkeypatch.setattr(lipschitz, "float32_gap", lambda *_: (0.0, math.inf))
    with pytest.raises(BenchmarkError, match="nothing can be certified: leave the certificate out"):
        run_stage("certify", *tiny_linear_row.NAMES)
