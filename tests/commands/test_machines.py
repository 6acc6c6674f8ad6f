"""What a run on many machines shows in a terminal, and how Ctrl-C ends it."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from benchmark.commands import machines
from benchmark.commands.main import app
from benchmark.pipeline.cluster import coordinator
from benchmark.pipeline.cluster.dispatch import Running
from benchmark.pipeline.schedule import Task, urgency
from benchmark.runtime.errors import BenchmarkError

ROW = SimpleNamespace(name="Mine-v")


def dispatch(sent: list[Running], done: set[str], seconds: dict[str, float]) -> SimpleNamespace:
    """Training of 60 s, then an attack of 100 s and a certificate of 20 s, then what collects both."""
    after = {"train": (), "attack": ("train",), "certify": ("train",), "collect": ("attack", "certify")}
    took = {"train": 60.0, "attack": 100.0, "certify": 20.0, "collect": 2.0}
    tasks = {k: Task(SimpleNamespace(name=k, row=ROW), frozenset(after[k]), took[k]) for k in after}
    return SimpleNamespace(
        tasks=tasks, sent={one.key: one for one in sent}, done=done, seconds=seconds, urgency=urgency(tasks)
    )


def text(run: SimpleNamespace, now: float) -> list[str]:
    console = Console(file=io.StringIO(), width=120)
    console.print(machines.shown(run, lambda: now))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_it_says_what_runs_where_since_when_what_is_left_and_what_was_spent() -> None:
    run = dispatch(
        [Running("attack", "fast", 90.0), Running("certify", "", 95.0)], {"train"}, {"A GPU": 150.0, "A CPU": 5.0}
    )
    assert text(run, 130.0) == [
        "stage   of      on    for",
        "attack  Mine-v  fast  40 s",
        "1 of 4 stages done, 1 run, 1 wait for a place, about 82 s left; spent: 5 s of A CPU, 2 min of A GPU",
    ]


def test_before_anything_runs_nothing_is_promised() -> None:
    assert text(dispatch([Running("train", "", 0.0)], set(), {}), 5.0) == [
        "0 of 4 stages done, 0 run, 1 wait for a place"
    ]


def test_more_than_fit_are_counted_those_that_run_longest_first(monkeypatch) -> None:
    monkeypatch.setattr(machines, "MOST", 1)
    run = dispatch([Running("train", "b", 20.0), Running("attack", "a", 10.0)], set(), {})
    assert text(run, 30.0)[1:3] == ["attack  Mine-v      a   20 s", "...     and 1 more"]


def test_while_watched_it_prints_what_was_spent_at_the_end_of_an_interrupt_too() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)
    run = dispatch([], {"train"}, {"A CPU": 61.0})
    with pytest.raises(KeyboardInterrupt), machines.watch(run, console):
        raise KeyboardInterrupt
    assert (
        console.file.getvalue().rstrip().endswith("1 of 4 stages done, 0 run, 0 wait for a place; spent: 61 s of A CPU")
    )


def test_ctrl_c_says_in_one_line_that_the_same_command_goes_on(monkeypatch) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(coordinator, "repro", interrupted)
    found = CliRunner().invoke(app, ["repro", "--engine", "ray"])
    assert found.exit_code == 130
    assert found.stdout == "interrupted; what is done is kept, and the same command goes on from there\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--engine rya", "unknown engine 'rya'; did you mean 'ray'"),
        ("--address head:6379", "--address needs --engine ray"),
        ("--engine slurm --address head:6379", "--address needs --engine ray"),
        ("--engine ray --dry-run", "--dry-run writes job arrays for --engine slurm; leave out --engine"),
    ],
)
def test_options_that_do_not_go_together_start_nothing(options, words, monkeypatch) -> None:
    def started(*arguments: object) -> None:
        raise AssertionError("a run was started")

    monkeypatch.setattr(coordinator, "repro", started)
    monkeypatch.setattr(coordinator, "repro_by_slurm", started)
    with pytest.raises(BenchmarkError, match=words):
        CliRunner().invoke(app, ["repro", *options.split()], catch_exceptions=False)
