"""Rows: found by their names, with the stages that their track asks for."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from stages import stage_code, stage_names

from benchmark import protocol
from benchmark.loading import submissions, tracks
from benchmark.loading.rows import load_row
from benchmark.runtime.errors import BenchmarkError


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tracks.load("digit"), "unknown track 'digit'; did you mean 'digits'?"),
        (lambda: submissions.load("Wong2020Fat"), "unknown submission 'Wong2020Fat'; did you mean 'Wong2020Fast'?"),
        (lambda: load_row("digits", "Wong2020Fast-lin"), "has no variant 'lin'; did you mean 'linf'?"),
        (lambda: load_row("digits", "Wong2020Fast"), "use <submission>-<variant>; did you mean"),
    ],
)
def test_unknown_names_suggest_the_near_miss(call, message) -> None:
    with pytest.raises(BenchmarkError) as raised:
        call()
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_every_row_of_a_track_is_smoothed_when_the_track_says_so() -> None:
    for name in ("Wong2020Fast-linf", "Havens2024LoFAST-mean_pool"):
        row = load_row("digits", name)
        assert stage_names("digits", name)[-4:] == ["smooth", "pictures", "attention", "collect"]
        without = dataclasses.replace(row, track=row.track.model_copy(update={"smoothing": None}))
        assert "smooth" not in [one.name for one in protocol.plan(without)]
        assert Path("benchmark/certificates/smoothing.py") in stage_code("smooth", "digits", name)
        assert Path("benchmark/certificates/smoothing.py") not in stage_code("train", "digits", name)
