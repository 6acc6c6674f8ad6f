"""When published rows and studies were last reproduced byte for byte: leaderboard/results/<track>/reproduced.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field, TypeAdapter, ValidationError

from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.base import Frozen

FILE = "reproduced.json"


class Reproduced(Frozen):
    """The commit whose code gave the published bytes again, the day (UTC), and what was computed: the row or one run."""

    commit: str = Field(pattern=r"^[0-9a-f]{12}$")
    date: str = Field(pattern=r"^\d{4}-\d\d-\d\d$")
    what: str = Field(pattern=r"^(row|cell .+, seed \d+)$")


ENTRIES = TypeAdapter(dict[str, Reproduced])


def read(folder: Path) -> dict[str, Reproduced]:
    """Return the entries of a track by row name or study id; none where the folder has no such file.

    Raises:
        BenchmarkError: the file is damaged.
    """
    path = folder / FILE
    if not path.exists():
        return {}
    try:
        return ENTRIES.validate_json(path.read_bytes())
    except ValidationError as error:
        words = error.errors()[0]["msg"]
        raise BenchmarkError(f"{path} is damaged ({words}); restore it with git, or delete it") from None


def mark(folder: Path, reproduced: Mapping[str, str], commit: str) -> Path:
    """Record that rows or studies were reproduced today at `commit`; return the file written.

    Args:
        reproduced: what was computed again, by row name or study id.
        commit: 12 hex digits.
    """
    date = datetime.now(UTC).date().isoformat()
    added = {name: Reproduced(commit=commit, date=date, what=what) for name, what in reproduced.items()}
    return _write(folder, {**read(folder), **added})


def forget(folder: Path, names: Iterable[str]) -> None:
    """Remove the entries of rows or studies whose published bytes change."""
    kept = read(folder)
    if gone := kept.keys() & set(names):
        _write(folder, {name: entry for name, entry in kept.items() if name not in gone})


def _write(folder: Path, entries: Mapping[str, Reproduced]) -> Path:
    files.write_json(folder / FILE, {name: entry.model_dump() for name, entry in entries.items()})
    return folder / FILE
