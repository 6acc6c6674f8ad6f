"""Projects that tests start from, built once in a run whatever its number of workers."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_project import Project


def built_once(factory: pytest.TempPathFactory, name: str, build: Callable[[Path], Project]) -> Project:
    """What `build` makes of a folder. The first worker that needs it builds it, and the others wait. Not to be changed."""
    base = factory.getbasetemp()
    home = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    home.mkdir(exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "done").exists():
            shutil.rmtree(home / "project", ignore_errors=True)  # what a worker left that failed
            build(home / "project")
            (home / "done").touch()
    return Project(home / "project")
