"""Seconds of a row's stages, in all and by device."""

from __future__ import annotations

from types import SimpleNamespace

from tiny_record import record

from benchmark.runtime import files
from leaderboard.times import times


def test_seconds_are_summed_in_all_and_by_device(tmp_path) -> None:
    measured = {
        "train": (10.0, "A GPU"),
        "attack-standard": (3.0, "A GPU"),
        "certify": (4.5, "A CPU"),
        "collect": (0.5, "A CPU"),
    }
    for stage, (seconds, device) in measured.items():
        files.write_json(tmp_path / "Mine-v" / "times" / f"{stage}.json", {"wall_seconds": seconds, "device": device})
    assert times(tmp_path, [SimpleNamespace(record=record("Mine", 1, 2))]) == {
        "Mine-v": {
            "training": 10.0, "evaluation": 8.0,
            "devices": {"training": {"A GPU": 10.0}, "evaluation": {"A GPU": 3.0, "A CPU": 5.0}},
        }
    }  # fmt: skip


def test_stages_that_named_no_device_count_in_all_alone_and_taken_weights_as_no_training(tmp_path) -> None:
    for stage in ("train", "certify"):
        files.write_json(tmp_path / "Mine-v" / "times" / f"{stage}.json", {"wall_seconds": 2.0})
    taken = SimpleNamespace(record=record("Mine", 1, 2).model_copy(update={"training": None}))
    assert times(tmp_path, [taken]) == {"Mine-v": {"evaluation": 2.0, "devices": {"evaluation": {}}}}
    assert times(tmp_path, [SimpleNamespace(record=record("Other", 1, 2))]) == {}


def test_parts_of_a_stage_count_for_the_devices_that_they_computed_on(tmp_path) -> None:
    seconds = {"train": {"wall_seconds": 1.0}, "certify": {"wall_seconds": 9.0, "parts": {"A GPU": 6.0, "A CPU": 2.0}}}
    for stage, one in seconds.items():
        files.write_json(tmp_path / "Mine-v" / "times" / f"{stage}.json", {**one, "device": "A CPU"})
    found = times(tmp_path, [SimpleNamespace(record=record("Mine", 1, 2))])["Mine-v"]
    assert found["evaluation"] == 9.0
    assert found["devices"] == {"training": {"A CPU": 1.0}, "evaluation": {"A CPU": 3.0, "A GPU": 6.0}}


def test_a_gpu_counts_for_as_long_as_it_was_held_and_a_processor_by_its_cores(tmp_path) -> None:
    seconds = {
        "train": {
            "wall_seconds": 9.0,
            "core_seconds": 30.0,
            "device_seconds": 18.0,
            "cost_seconds": 18.0,
            "device": "A GPU",
        },
        "certify": {
            "wall_seconds": 9.0,
            "core_seconds": 17.0,
            "cost_seconds": 17.0,
            "parts": {"A CPU": 6.0},
            "device": "A CPU",
        },
    }
    for stage, one in seconds.items():
        files.write_json(tmp_path / "Mine-v" / "times" / f"{stage}.json", one)
    found = times(tmp_path, [SimpleNamespace(record=record("Mine", 1, 2))])["Mine-v"]
    assert (found["training"], found["evaluation"]) == (18.0, 17.0)
    assert found["devices"] == {"training": {"A GPU": 18.0}, "evaluation": {"A CPU": 17.0}}
