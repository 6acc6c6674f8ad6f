"""The cost of a stage: all of its processes, over all the runs that it needed."""

from __future__ import annotations

import json
import os
import time

import pytest
from tiny_linear_row import ROW

from benchmark.runtime import files
from benchmark.runtime.clock import Clock, core_seconds

BUSY = 0.3  # seconds of a core


def busy() -> None:
    until = time.process_time() + BUSY
    while time.process_time() < until:
        pass


def test_processes_count_that_it_has_started_while_they_run_and_once_they_ended() -> None:
    before, (ours, theirs), (waits, ends) = core_seconds(), os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        busy()
        os.write(theirs, b"done")
        os.read(waits, 1)
        os._exit(0)
    os.read(ours, 4)
    assert core_seconds() - before >= 0.9 * BUSY
    os.write(ends, b"x")
    os.waitpid(child, 0)
    assert core_seconds() - before >= 0.9 * BUSY


def test_seconds_of_a_killed_run_are_added(tmp_path) -> None:
    files.write_json(tmp_path / "seconds.json", {"wall_seconds": 5.0, "core_seconds": 7.0})
    clock = Clock(tmp_path)
    clock.memory(200)
    clock.memory(100)
    cost = clock.cost(gpus=2)
    assert 5 <= cost["wall_seconds"] < 6
    assert 7 <= cost["core_seconds"] < 8
    assert 10 <= cost["device_seconds"] < 12
    assert cost["device_memory"] == 200
    assert cost["cost_seconds"] == pytest.approx(cost["device_seconds"])
    assert "device_seconds" not in Clock(tmp_path / "other").cost()
    clock.lap()
    assert json.loads((tmp_path / "seconds.json").read_text())["wall_seconds"] >= 5


def test_a_training_counts_where_it_ran(linear_row) -> None:
    """The evaluator's own process does next to nothing of it."""
    cost = json.loads((ROW / "times/train.json").read_text())
    assert cost["core_seconds"] > 0.05
    assert "process_seconds" not in cost
