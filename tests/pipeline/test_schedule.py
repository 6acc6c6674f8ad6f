"""Stages side by side: what waits, what goes first, what a failure leaves out."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from benchmark.pipeline.schedule import Task, run, urgency
from benchmark.runtime.errors import BenchmarkError


def task(seconds: float, *after: str) -> Task[None]:
    return Task(None, frozenset(after), seconds)


def test_urgency_is_the_longest_way_to_the_end() -> None:
    tasks = {
        "train": task(10),
        "attack": task(30, "train"),
        "smooth": task(5, "train"),
        "collect": task(1, "attack", "smooth"),
    }
    assert urgency(tasks) == {"train": 41, "attack": 31, "smooth": 6, "collect": 1}


def test_nothing_starts_before_what_it_waits_for_has_ended_and_no_more_than_the_jobs_run_at_once() -> None:
    tasks = {f"{row}{stage}": task(1, *([f"{row}{stage - 1}"] if stage else [])) for row in "abc" for stage in range(3)}
    running, most, ended, lock = set(), 0, [], threading.Lock()

    def work(key: str, _: None) -> None:
        nonlocal most
        with lock:
            assert tasks[key].after <= {*ended}
            running.add(key)
            most = max(most, len(running))
        time.sleep(0.01)
        with lock:
            running.remove(key)
            ended.append(key)

    assert run(tasks, 2, work) == []
    assert sorted(ended) == sorted(tasks)
    assert most == 2


def test_the_most_urgent_that_can_run_goes_first() -> None:
    order: list[str] = []
    tasks = {"short": task(1), "long": task(50), "then": task(5, "short"), "way": task(60, "then")}
    assert run(tasks, 1, lambda key, _: order.append(key)) == []
    assert order == ["short", "then", "way", "long"]


def test_a_failure_leaves_out_what_waits_for_it_alone() -> None:
    done: list[str] = []

    def work(key: str, _: None) -> None:
        if key == "b0":
            raise BenchmarkError("no")
        done.append(key)

    tasks = {"a0": task(1), "a1": task(1, "a0"), "b0": task(9), "b1": task(1, "b0"), "b2": task(1, "b1")}
    failures = run(tasks, 2, work)
    assert [str(error) for error in failures] == ["no"]
    assert sorted(done) == ["a0", "a1"]


def test_what_is_not_among_the_tasks_is_not_waited_for() -> None:
    done: list[str] = []
    assert run({"attack": task(1, "train")}, 2, lambda key, _: done.append(key)) == []
    assert done == ["attack"]


@pytest.mark.parametrize("error", [OSError("disk"), KeyboardInterrupt()])
def test_anything_else_ends_it_and_starts_no_more(error) -> None:
    done: list[str] = []

    def work(key: str, _: None) -> None:
        done.append(key)
        raise error

    with pytest.raises(type(error)):
        run({f"{n}": task(1) for n in range(9)}, 2, work)
    assert len(done) <= 2


def test_an_interrupt_of_who_waits_starts_no_more() -> None:
    done: list[str] = []
    # a shell's background job inherits that it is ignored
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def work(key: str, _: None) -> None:
        done.append(key)
        os.kill(os.getpid(), signal.SIGINT)  # to the main thread, which waits for this one
        time.sleep(0.1)

    try:
        with pytest.raises(KeyboardInterrupt):
            run({f"{n}": task(1) for n in range(9)}, 1, work)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(done) <= 2
