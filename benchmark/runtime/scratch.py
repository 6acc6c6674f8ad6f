"""Partial work that survives a kill: one locked scratch folder a stage, keyed by everything that goes into it.

DVC deletes a stage's outs before it runs again, so partial work lives outside them. `kill -9` of dvc leaves the stage's
command alive: the next run waits here for that orphan instead of working beside it, then takes over what it left.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from benchmark.runtime import files

FOLDER = Path("work/scratch")


def key(inputs: dict[str, Any]) -> str:
    """A name for work that depends on `inputs` (JSON values) alone."""
    return files.sha256_bytes(json.dumps(inputs, sort_keys=True).encode())[:24]


def place(stage: str, name: str) -> Path:
    """Where partial work of a stage stands, by its `key`."""
    return FOLDER / stage / name


@contextmanager
def locked(stage: str, inputs: dict[str, Any], out: Path) -> Iterator[Path | None]:
    """The scratch folder of `stage` for these inputs, held by this process alone.

    Waits, and says so, while another process holds it. If that process finished the same work and `out` stands, there is
    nothing left to do and None is given. Work left for other inputs is removed. The folder itself goes when the block
    ends without an error; a kill or an error keeps it for the next run.
    """
    home = FOLDER / stage
    home.mkdir(parents=True, exist_ok=True)
    name, finished = key(inputs), home / "finished"
    with (home / "lock").open("a+") as handle:
        waited = _take(handle, stage)
        if waited and out.exists() and finished.exists() and finished.read_text() == name:
            print(f"{stage}: the earlier process has finished it", flush=True)
            yield None
            return
        finished.unlink(missing_ok=True)
        folder = place(stage, name)
        for other in home.iterdir():
            if other.is_dir() and other != folder:
                shutil.rmtree(other)
        folder.mkdir(exist_ok=True)
        yield folder
        shutil.rmtree(folder)
        finished.write_text(name)


def _take(handle: IO[str], stage: str) -> bool:
    """Takes the lock and writes this process's number into the file; whether it had to wait."""
    waited = False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        waited = True
        handle.seek(0)
        owner = handle.read().strip() or "unknown"
        print(f"{stage} is already running as process {owner}; waiting for it to end", file=sys.stderr, flush=True)
        fcntl.flock(handle, fcntl.LOCK_EX)
    handle.seek(0)
    handle.truncate()
    handle.write(str(os.getpid()))
    handle.flush()
    return waited
