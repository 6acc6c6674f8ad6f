"""Where the checkout is whose files a command or a user's program means."""

from __future__ import annotations

from pathlib import Path

from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import PARAMS


def root() -> Path:
    """The root of the checkout that the working directory stands in; a BenchmarkError outside of one."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "submissions").is_dir() and (folder / PARAMS).is_file():
            return folder
    raise BenchmarkError(
        "run this inside a checkout of robust-vit-bench; no submissions/ and params.yaml found here or above"
    )
