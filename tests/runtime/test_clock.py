"""What a stage cost: all of its processes, over all the runs that it needed."""

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


def test_seconds_of_a_killed_run_and_of_parts_are_added_and_memory_is_the_most(tmp_path) -> None:
    files.write_json(tmp_path / "seconds.json", {"wall_seconds": 5.0, "core_seconds": 7.0})
    for number, (seconds, memory) in enumerate([(3.0, 100), (4.0, 300)]):
        part = {"wall_seconds": seconds, "core_seconds": 1.0, "device_seconds": seconds, "device_memory": memory}
        part["cost_seconds"] = seconds
        files.write_json(tmp_path / f"blocks/seconds-{number}.json", part | {"device": "A GPU"})
    clock = Clock(tmp_path)
    clock.memory(200)
    cost = clock.cost(gpus=2)
    assert 12 <= cost["wall_seconds"] < 13
    assert 9 <= cost["core_seconds"] < 10
    assert 17 <= cost["device_seconds"] < 19
    assert cost["device_memory"] == 300
    assert cost["cost_seconds"] == pytest.approx(cost["device_seconds"])
    assert clock.of_parts() == {"parts": {"A GPU": 7.0}}
    assert "device_seconds" not in Clock(tmp_path / "other").cost()
    clock.lap()
    assert json.loads((tmp_path / "seconds.json").read_text())["wall_seconds"] >= 5


def test_cores_of_a_stage_and_gpus_of_its_parts_are_both_counted(tmp_path) -> None:
    part = {"wall_seconds": 3.0, "core_seconds": 4.0, "device_seconds": 3.0, "device_memory": 1, "cost_seconds": 3.0}
    files.write_json(tmp_path / "blocks/seconds-0.json", part | {"device": "A GPU"})
    files.write_json(tmp_path / "seconds.json", {"wall_seconds": 5.0, "core_seconds": 7.0})
    clock = Clock(tmp_path)
    assert 10 <= clock.cost()["cost_seconds"] < 11
    assert clock.of_parts() == {"parts": {"A GPU": 3.0}}


def test_a_training_counts_where_it_ran(linear_row) -> None:
    """The judge's own process does next to nothing of it."""
    cost = json.loads((ROW / "times/train.json").read_text())
    assert cost["core_seconds"] > 0.05
    assert "process_seconds" not in cost
