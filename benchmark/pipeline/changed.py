"""Name the rows that a branch can move: those with a step that reads a changed file of code or settings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from benchmark import protocol
from benchmark.runtime import code, git
from benchmark.specs import submissions, tracks
from benchmark.specs.rows import Row, load_rows


def changed_rows(names: Sequence[str], commit: str, everything: bool = False) -> list[Row]:
    """Return the rows of these tracks that changes since `commit`, committed or not, can move, in order.

    Rows with `default: false` count only where their own folder changed, or with `everything`. A comment counts too. Raise a
    BenchmarkError for an unknown track, or a submission that does not load.
    """
    touched, digests = git.changed_since(commit), cache(code.digests)
    owners = {file.parts[1] for file in touched if file.parts[0] == submissions.FOLDER.name and len(file.parts) > 2}
    rows = []
    for name in names:
        shared = {tracks.FOLDER / f"{name}.yaml", Path("params.yaml")}
        for row in load_rows(name):
            read = {Path(file) for step in protocol.plan(row) for entry in step.entries for file in digests(entry)}
            if owners & _submissions(row) or (touched & (read | shared) and (row.default or everything)):
                rows.append(row)
    return rows


def _submissions(row: Row) -> set[str]:
    """Return the row's submission and those of the rows from whose weights it starts."""
    return {row.submission.name} | (_submissions(row.source) if row.source else set())
