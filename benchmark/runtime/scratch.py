"""Partial work that survives a kill: one locked scratch folder for each step, keyed by all its inputs.

`kill -9` of dvc leaves its stage's command alive. The next run waits for that orphan, and then takes over its partial work.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from benchmark.runtime import files

FOLDER = Path("work/scratch")


def key(inputs: dict[str, Any]) -> str:
    """Return a name for work that depends on `inputs` (JSON values) alone."""
    return files.sha256_bytes(json.dumps(inputs, sort_keys=True).encode())[:24]


@contextmanager
def locked(step: str, inputs: dict[str, Any]) -> Iterator[Path]:
    """Hold the scratch folder of `step` for these inputs.

    Wait, and say so, while another process holds it. Work for other inputs is removed. The folder is deleted if the
    block ends without an error; else it stays, and the next run continues from it.
    """
    home = FOLDER / step
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("a+") as handle:
        _take(handle, step)
        kept = next(home.glob(f"{key(inputs)}-*"), None)
        # a name that nobody can guess: code with labels may write there, and other code must not find its files
        folder = kept or home / f"{key(inputs)}-{secrets.token_hex(16)}"
        for other in home.iterdir():
            if other.is_dir() and other != folder:
                shutil.rmtree(other)
        folder.mkdir(exist_ok=True)
        yield folder
        shutil.rmtree(folder)


def _take(handle: IO[str], step: str) -> None:
    """Take the lock, and write this process's number into the file."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.seek(0)
        owner = handle.read().strip() or "unknown"
        print(f"{step} is already running as process {owner}; waiting for it to end", file=sys.stderr, flush=True)
        fcntl.flock(handle, fcntl.LOCK_EX)
    handle.seek(0)
    handle.truncate()
    handle.write(str(os.getpid()))
    handle.flush()
