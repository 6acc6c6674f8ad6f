"""Files that a killed dvc left truncated, and the lock of a checkout's coordinator."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import WORK

RWLOCK = Path(".dvc/tmp/rwlock")  # DVC's list of running commands
COORDINATOR = WORK / ".coordinator.lock"


@contextmanager
def alone() -> Iterator[None]:
    """Hold the lock of this checkout's coordinator. Raise a BenchmarkError if another process holds it."""
    COORDINATOR.parent.mkdir(parents=True, exist_ok=True)
    with COORDINATOR.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BenchmarkError("another `rvb repro --engine` runs in this checkout; wait for it or end it") from None
        yield


def check_rwlock() -> None:
    """Raise a BenchmarkError where a killed dvc truncated its list of running commands: every later dvc would fail."""
    try:
        whole = isinstance(json.loads(RWLOCK.read_text() or "{}"), dict)
    except FileNotFoundError:
        return
    except ValueError:
        whole = False
    if not whole:
        raise BenchmarkError(f"{RWLOCK} is cut short, as by a killed dvc; once no dvc runs here, remove it")


def cut_short() -> list[Path]:
    """Return the dvc.lock files that a killed dvc truncated. Raise a BenchmarkError for a merge's conflict markers in one."""
    locks = (Path("dvc.lock"), *Path("pipelines").rglob("dvc.lock"))
    return [path for path in locks if path.exists() and not _whole(path)]


def remove_cut(report: Callable[[str], None]) -> None:
    """Remove truncated dvc.lock files. Their stages run again, and find the results of their steps."""
    for path in cut_short():
        path.unlink()
        report(f"removed {path}, which a killed dvc had left cut short")


def _whole(lock: Path) -> bool:
    if b"\n<<<<<<< " in b"\n" + lock.read_bytes():
        raise BenchmarkError(
            f"{lock} holds the conflict markers of a merge; take one side, as by `git checkout --ours {lock}`, and run the "
            "same command again"
        )
    try:
        content = yaml.load(lock.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        return False
    return isinstance(content, dict) and isinstance(content.get("stages"), dict)
