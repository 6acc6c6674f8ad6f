"""The cost of a step: seconds of wall time, cores and GPUs, and GPU memory."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from benchmark.runtime import files

BLOCKS = "blocks"  # in a step's scratch folder, the folder of files about some images each


class Clock:
    """The cost of a step over all runs that it needed, kept in its scratch folder until it is done.

    Costs are written beside the results, never into them, since no two runs take the same time.
    """

    def __init__(self, scratch: Path) -> None:
        self._path = scratch / "seconds.json"
        self._before: dict[str, float] = json.loads(self._path.read_text()) if self._path.exists() else {}
        self._wall, self._cores = time.perf_counter(), core_seconds()
        self._memory = 0

    def memory(self, held: int) -> None:
        """Note GPU memory of the step, in bytes; the peak is kept."""
        self._memory = max(self._memory, held)

    def cost(self, gpus: int = 0) -> dict[str, Any]:
        """Return seconds of wall time and of the cores of all its processes.

        For a step on `gpus` GPUs also `device_seconds`, wall time multiplied by their number, and `device_memory`,
        the peak in bytes. `cost_seconds` are those of the devices that computed: GPUs, else cores.
        """
        own: dict[str, Any] = self._own()
        if gpus:
            own |= {"device_seconds": own["wall_seconds"] * gpus, "device_memory": self._memory}
        own["cost_seconds"] = own.get("device_seconds", own["core_seconds"])
        return {key: round(much, 2) for key, much in own.items()}

    def _own(self) -> dict[str, float]:
        passed = {"wall_seconds": time.perf_counter() - self._wall, "core_seconds": core_seconds() - self._cores}
        return {key: self._before.get(key, 0.0) + much for key, much in passed.items()}

    def lap(self) -> None:
        """Save the time so far, in case this process is killed."""
        files.write_json(self._path, self._own())


def core_seconds() -> float:
    """Return the core seconds of this process and of its children, ended or not."""
    seconds = sum(psutil.Process().cpu_times()[:4])  # with those that have ended
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            seconds += sum(child.cpu_times()[:2])
    return seconds


def device_cost(seconds: Mapping[str, Any]) -> float:
    """Return the cost of a step (`Clock.cost`); wall seconds for times measured before cores were counted."""
    return seconds.get("cost_seconds", seconds["wall_seconds"])
