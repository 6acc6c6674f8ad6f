"""What each step of a row took: when it last ran here, else when the published row was built."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmark import protocol
from benchmark.runtime import files
from benchmark.runtime.paths import PUBLISHED
from benchmark.specs.rows import Row, load_row

FILE = "times.json"  # beside the published Records of a track
Cost = dict[str, int | float | str]  # of a step (runtime/clock.py)


def costs(row: Row) -> dict[str, dict[str, Any]]:
    """Return what each step of the row took (runtime/clock.py). A step that ran neither here nor as published is left out."""
    taken: dict[str, Any] = {**_published(row.track.name).get(row.name, {})}
    steps = [step.name for step in protocol.plan(row)]
    for step in steps:
        if (times := row.times / f"{step}.json").exists():
            taken[step] = files.read_model(times, Cost)
    return {step: taken[step] for step in steps if step in taken}


def publish(track: str, rows: Iterable[str]) -> Path:
    """Write what the steps of these rows took beside their published Records. Return the file."""
    path = PUBLISHED / track / FILE
    files.write_json(path, _published(track) | {name: costs(load_row(track, name)) for name in rows})
    return path


def _published(track: str) -> dict[str, dict[str, Cost]]:
    """Return what the steps of published rows took. Raise a BenchmarkError for a damaged file."""
    path = PUBLISHED / track / FILE
    again = "bring it back with git, or delete it and publish the rows again"
    return files.read_model(path, dict[str, dict[str, Cost]], again) if path.exists() else {}
