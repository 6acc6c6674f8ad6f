"""Where things stand in a checkout."""

from __future__ import annotations

import os
from pathlib import Path

from benchmark.runtime.errors import BenchmarkError

WORK = Path("work")
PARAMS = Path("params.yaml")
PUBLISHED = Path("leaderboard/results")  # records and studies that git keeps


def root() -> Path:
    """The root of the checkout that the working directory stands in; a BenchmarkError outside of one."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "submissions").is_dir() and (folder / PARAMS).is_file():
            return folder
    raise BenchmarkError(
        "run this inside a checkout of robust-vit-bench; no submissions/ and params.yaml found here or above"
    )


def home() -> Path:
    """The root of the checkout that the working directory stands in; outside of one, where the package is installed."""
    try:
        return root()
    except BenchmarkError:
        return Path(__file__).parents[2]


def go_to_root() -> None:
    """Work from the root of the checkout from now on; `as_typed` remembers where the user stands."""
    global _TYPED_IN
    _TYPED_IN, folder = Path.cwd(), root()
    os.chdir(folder)


def as_typed(path: Path) -> Path:
    """Return a path that a user typed, as it is seen from where the user stands."""
    return path if path.is_absolute() else Path(os.path.relpath(_TYPED_IN / path))


_TYPED_IN = Path()
