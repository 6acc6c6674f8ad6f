"""Steps run in this process, as `rvb step` runs them, and the code that one depends on."""

from __future__ import annotations

from pathlib import Path

from benchmark import protocol
from benchmark.commands.pipeline import step
from benchmark.loading.rows import load_row
from benchmark.runtime import code


def run_stage(name: str, track: str, row: str = "") -> None:
    step(name, row, track, "")


def stage_names(track: str, row: str) -> list[str]:
    """The stages of a row, in order."""
    return [one.name for one in protocol.plan(load_row(track, row))]


def stage_code(name: str, track: str, row: str) -> list[Path]:
    """The project files that this stage of the row depends on."""
    return code.closure(*protocol.planned(load_row(track, row), name).entries)
