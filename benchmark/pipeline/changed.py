"""Which rows a branch can move: those with a step that reads a file of code or settings that the branch changes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from benchmark import protocol
from benchmark.runtime import code, git
from benchmark.specs import submissions, tracks
from benchmark.specs.rows import Row, load_rows


def changed_rows(names: Sequence[str], commit: str, everything: bool = False) -> list[Row]:
    """The rows of these tracks that changes since `commit`, committed or not, can move, in order. Rows with `default:
    false` count only where their own folder changed, or with `everything`. A comment counts too. Raises BenchmarkError:
    an unknown track, or a submission that does not load.
    """
    touched, digests = git.changed_since(commit), cache(code.digests)
    found = []
    for name in names:
        shared = {tracks.FOLDER / f"{name}.yaml", Path("params.yaml")}
        for row in load_rows(name):
            read = {Path(file) for one in protocol.plan(row) for entry in one.entries for file in digests(entry)}
            own = {file for file in touched if _owner(file) in _submissions(row)}
            if own or (touched & (read | shared) and (row.default or everything)):
                found.append(row)
    return found


def _submissions(row: Row) -> set[str]:
    """Its own, and those of the rows from whose weights it starts."""
    return {row.submission.name} | (_submissions(row.source) if row.source else set())


def _owner(file: Path) -> str:
    return file.parts[1] if file.parts[0] == submissions.FOLDER.name and len(file.parts) > 2 else ""
