"""Stages run in this process, as `rvb stage` runs them, and the code that one depends on."""

from __future__ import annotations

from pathlib import Path

from benchmark.commands.pipeline import stage
from benchmark.pipeline import inputs
from benchmark.runtime import code
from benchmark.steps import catalogue


def run_stage(name: str, track: str, row: str = "") -> None:
    stage(name, row, track, "")


def stage_names(track: str, row: str) -> list[str]:
    """The stages of a row, in order."""
    return [one.name for one in catalogue.plan(catalogue.load_row(track, row))]


def stage_code(name: str, track: str, row: str) -> list[Path]:
    """The project files that this stage of the row depends on."""
    return code.closure(inputs.MAIN, *catalogue.planned(track, row, name).entries)
