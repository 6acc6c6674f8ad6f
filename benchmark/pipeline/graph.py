"""A track's graph: which stages its rows have, what each waits for, and how long it tends to take."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchmark.loading.rows import Row, load_row
from benchmark.pipeline import generate, schedule
from benchmark.stages import catalogue
from benchmark.stages.catalogue import Planned


def tasks_of(track: str, rows: Sequence[Row], changed: set[str]) -> dict[str, schedule.Task[Planned]]:
    """The stages of the rows that DVC would run, and those that read what these write, by `<dvc.yaml>:<name>`."""
    planned = {key_of(one): one for row in _with_sources(track, rows) for one in catalogue.plan(row)}
    data = f"{generate.data_file(track)}:data"
    read = reads(track, rows)
    after = {key: frozenset(read[key]) & planned.keys() for key in planned}
    stale: set[str] = set()
    for key in planned:  # what a stage waits for stands before it
        if data in changed or key in changed or after[key] & stale:
            stale.add(key)
    return {key: _task(planned[key], after[key]) for key in planned if key in stale}


def reads(track: str, rows: Sequence[Row]) -> dict[str, list[str]]:
    """By stage of the rows: the stages whose results it reads, in order; the data's and those of other tracks among them."""
    chosen = _with_sources(track, rows)
    planned = {key_of(one): one for row in chosen for one in catalogue.plan(row)}
    writers = {one.folder: key for key, one in planned.items()}
    writers |= {row.data: f"{generate.data_file(track)}:data" for row in chosen}
    writers |= {one.folder: key_of(one) for one in foreign(track, rows)}
    return {
        key: [*dict.fromkeys(writers[home] for path in one.reads for home in (path, path.parent) if home in writers)]
        for key, one in planned.items()
    }


def _with_sources(track: str, rows: Sequence[Row]) -> list[Row]:
    """The rows, and before them those of this track from whose weights they start."""
    found: dict[str, Row] = {}

    def add(row: Row) -> None:
        start = row.settings.training.init_from if row.settings.training else None
        if start and start.track in (None, track) and start.row not in found:
            add(load_row(track, start.row))
        found[row.name] = row

    for row in rows:
        add(row)
    return list(found.values())


def foreign_sources(track: str, rows: Sequence[Row]) -> list[str]:
    """The stages of other tracks whose weights rows start from, `<dvc.yaml>:<name>`."""
    return list(dict.fromkeys(key_of(one) for one in foreign(track, rows)))


def foreign(track: str, rows: Sequence[Row]) -> list[Planned]:
    """The stages of other tracks whose weights rows start from."""
    found = []
    for row in _with_sources(track, rows):
        start = row.settings.training.init_from if row.settings.training else None
        if start and start.track not in (None, track):
            source = load_row(start.track, start.row)
            found += [one for one in catalogue.plan(source) if one.folder == source.weights.parent]
    return found


def key_of(one: Planned) -> str:
    """Its name to DVC, `<dvc.yaml>:<name>`."""
    return f"{generate.row_file(one.row.track.name, one.row.name)}:{one.name}"


def _task(one: Planned, after: frozenset[str]) -> schedule.Task[Planned]:
    """With how long it took last time, or what its kind tends to take on digits: elsewhere that tells nothing of hours."""
    path = times_file(one)
    if path.exists():
        return schedule.Task(one, after, json.loads(path.read_text())["wall_seconds"])
    return schedule.Task(one, after, one.stage.typical_seconds, known=one.row.track.name == generate.DEFAULT_TRACK)


def times_file(one: Planned) -> Path:
    """How long a stage took last time, where it ran here."""
    return one.row.folder / "times" / f"{one.name}.json"
