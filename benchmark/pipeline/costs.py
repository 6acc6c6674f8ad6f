"""What each step of a row took: when it last ran here, else when what is published of the row was built."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmark import protocol
from benchmark.runtime import files
from benchmark.runtime.paths import PUBLISHED
from benchmark.specs.rows import Row, load_row

FILE = "times.json"  # beside the published Records of a track


def costs(row: Row) -> dict[str, dict[str, Any]]:
    """Return what each step of the row took (runtime/clock.py); one that ran neither here nor as published is left out."""
    path = PUBLISHED / row.track.name / FILE
    known = files.read_json(path).get(row.name, {}) if path.exists() else {}
    for one in protocol.plan(row):
        if (here := row.times / f"{one.name}.json").exists():
            known[one.name] = files.read_json(here)
    return {one.name: known[one.name] for one in protocol.plan(row) if one.name in known}


def publish(track: str, rows: Iterable[str]) -> Path:
    """Write what the steps of these rows took beside their published Records; return the file."""
    path = PUBLISHED / track / FILE
    kept = files.read_json(path) if path.exists() else {}
    files.write_json(path, kept | {name: costs(load_row(track, name)) for name in rows})
    return path
