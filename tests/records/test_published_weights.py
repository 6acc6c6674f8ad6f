"""Weights that are published beside a Record are the Record's, by their hash, and small enough for git."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmark.runtime import files
from benchmark.runtime.paths import PUBLISHED

WEIGHTS = sorted(PUBLISHED.glob("*/weights/*.safetensors"))
MOST = 16 * 2**20  # bytes


def test_there_are_some_for_each_track_with_records() -> None:
    assert {path.parents[1].name for path in WEIGHTS} >= {"digits", "cifar10_jpeg"}


@pytest.mark.parametrize("path", WEIGHTS, ids=lambda path: f"{path.parents[1].name}-{path.stem}")
def test_they_are_those_of_the_record(path: Path) -> None:
    record = json.loads((path.parents[1] / f"{path.stem}.json").read_text())
    assert files.sha256_file(path) == record["sha256"]["weights"]
    assert path.stat().st_size <= MOST
