"""Weights that are published beside a Record are the Record's, by their hash, and small enough for git."""

from __future__ import annotations

import json

from benchmark.runtime import files
from benchmark.runtime.paths import PUBLISHED


def test_published_weights_are_those_of_the_record_and_every_track_has_some() -> None:
    weights = sorted(PUBLISHED.glob("*/weights/*.safetensors"))
    assert {path.parents[1].name for path in weights} >= {"digits", "cifar10_jpeg"}
    for path in weights:
        record = json.loads((path.parents[1] / f"{path.stem}.json").read_text())
        assert files.sha256_file(path) == record["sha256"]["weights"], path
        assert path.stat().st_size <= 16 * 2**20, path
