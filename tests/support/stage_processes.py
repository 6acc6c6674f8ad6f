"""Processes of stages: found, and waited for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


def wait_for(condition: Callable[[], object], what: str, seconds: float = 60) -> object:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"no {what} after {seconds} s")


def stage_processes(project, stage: str, forks: bool = False) -> list[int]:
    """Python processes that run this stage in this project: not the shells around them, nor, unless asked for, their forks,
    in which steps and sandboxed code run.
    """
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            here = os.readlink(entry / "cwd")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        named = any(word.partition(b"-")[0] == stage.encode() for word in words)
        if b"benchmark.protocol" in words and named and here == str(project.root):
            found[int(entry.name)] = parent
    return [pid for pid, parent in found.items() if forks or parent not in found]
