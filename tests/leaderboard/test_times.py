"""Seconds of a row's stages, in all and by device."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tiny_record import record

from benchmark.runtime import files
from leaderboard.times import times


def named(seconds: float, device: str, **more: object) -> dict:
    return {"wall_seconds": seconds, "device": device, **more}


@pytest.mark.parametrize(
    ("stages", "training", "evaluation", "devices"),
    [
        (  # seconds are summed, in all and by device
            {
                "train": named(10.0, "A GPU"), "attack-standard": named(3.0, "A GPU"),
                "certify": named(4.5, "A CPU"), "collect": named(0.5, "A CPU"),
            },
            10.0, 8.0, {"training": {"A GPU": 10.0}, "evaluation": {"A GPU": 3.0, "A CPU": 5.0}},
        ),
        (  # parts of a stage count for the devices that they computed on
            {"train": named(1.0, "A CPU"), "certify": named(9.0, "A CPU", parts={"A GPU": 6.0, "A CPU": 2.0})},
            1.0, 9.0, {"training": {"A CPU": 1.0}, "evaluation": {"A CPU": 3.0, "A GPU": 6.0}},
        ),
        (  # a GPU for as long as it was held, a processor by its cores
            {
                "train": named(9.0, "A GPU", core_seconds=30.0, device_seconds=18.0, cost_seconds=18.0),
                "certify": named(9.0, "A CPU", core_seconds=17.0, cost_seconds=17.0, parts={"A CPU": 6.0}),
            },
            18.0, 17.0, {"training": {"A GPU": 18.0}, "evaluation": {"A CPU": 17.0}},
        ),
    ],
)  # fmt: skip
def test_seconds_are_summed_in_all_and_by_device(tmp_path, stages, training, evaluation, devices) -> None:
    for stage, one in stages.items():
        files.write_json(tmp_path / "Mine-v" / "times" / f"{stage}.json", one)
    found = times(tmp_path, [SimpleNamespace(record=record("Mine", 1, 2))])
    assert found == {"Mine-v": {"training": training, "evaluation": evaluation, "devices": devices}}


def test_stages_that_named_no_device_count_in_all_alone_and_taken_weights_as_no_training(tmp_path) -> None:
    for stage in ("train", "certify"):
        files.write_json(tmp_path / "Mine-v" / "times" / f"{stage}.json", {"wall_seconds": 2.0})
    taken = SimpleNamespace(record=record("Mine", 1, 2).model_copy(update={"training": None}))
    assert times(tmp_path, [taken]) == {"Mine-v": {"evaluation": 2.0, "devices": {"evaluation": {}}}}
    assert times(tmp_path, [SimpleNamespace(record=record("Other", 1, 2))]) == {}
