"""When published rows and studies were last reproduced byte for byte: leaderboard/results/<track>/reproduced.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field

from benchmark.runtime import files
from benchmark.specs.base import Frozen

FILE = "reproduced.json"


class Reproduced(Frozen):
    """The commit whose code gave the published bytes again, the day (UTC), and what was computed: the row or one run."""

    commit: str = Field(pattern=r"^[0-9a-f]{12}$")
    date: str = Field(pattern=r"^\d{4}-\d\d-\d\d$")
    what: str = Field(pattern=r"^(row|cell .+, seed \d+)$")


def read(folder: Path) -> dict[str, Reproduced]:
    """Return a track's entries by row name or study id. Raise a BenchmarkError for a damaged file."""
    path = folder / FILE
    return files.read_model(path, dict[str, Reproduced], "bring it back with git, or delete it") if path.exists() else {}


def update(folder: Path, reproduced: Mapping[str, str], commit: str = "", *, forget: Iterable[str] = ()) -> None:
    """Note what was reproduced today at `commit`, by row or study; forget rows or studies that are published again."""
    date, before = datetime.now(UTC).date().isoformat(), read(folder)
    now = {name: entry for name, entry in before.items() if name not in {*forget}}
    now |= {name: Reproduced(commit=commit, date=date, what=what) for name, what in reproduced.items()}
    if now != before:
        files.write_json(folder / FILE, {name: entry.model_dump() for name, entry in now.items()})
