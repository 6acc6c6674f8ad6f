"""The line of progress: what it counts, and what it says is left."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from benchmark.pipeline.progress import Progress, duration, left_words
from benchmark.pipeline.schedule import Task


def task(row: str, stage: str, seconds: float, *after: str) -> Task[Any]:
    return Task(SimpleNamespace(name=stage, row=SimpleNamespace(name=row)), frozenset(after), seconds)


TASKS = {
    "a/train": task("A-x", "train", 100),
    "a/attack": task("A-x", "attack-papers", 60, "a/train"),
    "b/train": task("B-x", "train", 20),
    "b/attack": task("B-x", "attack-papers", 30, "b/train"),
    "b/collect": task("B-x", "collect", 10, "b/attack"),
}


class Run:
    """A progress under a clock that stands until it is moved."""

    def __init__(self, jobs: int) -> None:
        self.now, self.lines = 0.0, list[str]()
        self.progress = Progress(TASKS, jobs, self.lines.append, lambda: self.now)


def test_a_stage_that_starts_says_its_place_and_what_is_left() -> None:
    run = Run(jobs=2)
    run.progress.start("a/train")
    run.progress.start("b/train")
    run.now = 20
    run.progress.end("b/train")
    run.progress.start("b/attack")
    assert run.lines == [
        "Stage train of A-x, 1 of 5, about 3 min left",
        "Stage train of B-x, 2 of 5, about 3 min left",
        "Stage attack-papers of B-x, 3 of 5, about 2 min left",
    ]
    assert run.progress.line() == run.lines[-1]


def test_what_is_left_is_the_longest_way_or_all_work_on_the_jobs() -> None:
    assert Run(jobs=5).progress.seconds_left() == 160
    alone = Run(jobs=1)
    assert alone.progress.seconds_left() == 220
    alone.progress.start("a/train")
    alone.now = 90
    assert alone.progress.seconds_left() == 130
    alone.now = 500  # longer than it took last time
    assert alone.progress.seconds_left() == 120
    alone.progress.end("a/train")
    assert alone.progress.seconds_left() == 120


def test_after_a_failure_what_waited_for_it_counts_no_more() -> None:
    run = Run(jobs=1)
    run.progress.start("b/train")
    run.progress.end("b/train", failed=True)
    assert run.progress.line() == ""
    run.progress.start("a/train")
    assert run.lines[-1] == "Stage train of A-x, 2 of 3, about 3 min left"
    run.progress.end("a/train", failed=True)
    assert run.progress.seconds_left() == 0


def test_of_stages_that_never_ran_here_no_time_is_said() -> None:
    """What a training takes on digits says nothing of one that takes hours."""
    lines: list[str] = []
    tasks = TASKS | {"a/train": replace(TASKS["a/train"], known=False)}
    run = Progress(tasks, 1, lines.append, lambda: 0.0)
    run.start("a/train")
    assert lines == ["Stage train of A-x, 1 of 5, time left unknown (rvb plan estimates it)"]
    run.end("a/train")
    run.start("a/attack")
    assert lines[-1] == "Stage attack-papers of A-x, 2 of 5, about 2 min left"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "longer than expected"), (4, "a few seconds left"), (99, "about 99 s left"), (100, "about 2 min left")],
)
def test_times_are_said_in_the_unit_that_fits(seconds, words) -> None:
    assert left_words(seconds) == words


def test_hours_have_a_decimal() -> None:
    assert duration(9000) == "2.5 h"
