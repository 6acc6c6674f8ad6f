"""What a stage cost, as the file of its times beside the results has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def device_cost(seconds: Mapping[str, Any]) -> float:
    """Return the seconds of a device that a stage or a part took: of its GPUs, else of all cores that it kept busy.

    Stages measured before cores were counted give seconds of wall.
    """
    return seconds.get("device_seconds", seconds.get("core_seconds", seconds["wall_seconds"]))
