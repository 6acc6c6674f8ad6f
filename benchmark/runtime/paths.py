"""Places in a checkout."""

from __future__ import annotations

import os
from pathlib import Path

from benchmark.runtime.errors import BenchmarkError

WORK = Path("work")
PARAMS = Path("params.yaml")
PUBLISHED = Path("leaderboard/results")  # records and studies that git keeps


def root() -> Path:
    """Return the root of the checkout around the working directory. Raise BenchmarkError outside of one."""
    current = Path.cwd()
    for folder in (current, *current.parents):
        if (folder / "submissions").is_dir() and (folder / PARAMS).is_file():
            return folder
    raise BenchmarkError(
        "run this inside a checkout of robust-vit-bench; no submissions/ and params.yaml found here or above"
    )


def home() -> Path:
    """Return the root of the checkout around the working directory; outside of one, the package's parent folder."""
    try:
        return root()
    except BenchmarkError:
        return Path(__file__).parents[2]


def papers_file(track: str) -> Path:
    """Return the file in which the board finds what submissions declare."""
    return WORK / track / "inputs" / "papers.json"


def published_files(track: str) -> list[Path]:
    """Return the published studies of a track, `<submission>-<study>.json`."""
    return sorted((PUBLISHED / track / "studies").glob("*.json"))


def go_to_root() -> None:
    """Change to the root of the checkout; `as_typed` remembers the user's directory."""
    global _TYPED_IN
    _TYPED_IN, folder = Path.cwd(), root()
    os.chdir(folder)


def as_typed(path: Path) -> Path:
    """Return a path that a user typed relative to the user's directory."""
    return path if path.is_absolute() else Path(os.path.relpath(_TYPED_IN / path))


_TYPED_IN = Path()
