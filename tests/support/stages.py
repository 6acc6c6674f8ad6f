"""Steps run in this process, as `rvb step` runs them, and the code that one depends on."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmark import protocol
from benchmark.commands.pipeline import step
from benchmark.pipeline import inputs
from benchmark.runtime import code
from benchmark.specs.rows import load_row
from benchmark.studies import grids


def run_stage(name: str, track: str, row: str = "") -> None:
    step(name, row, track, "")


def run_study(track: str, study: str) -> None:
    """Do a study as its DVC stages do it. Raise SystemExit where a network or the check fails; its process prints the error."""
    inputs.write_study(track, study)
    protocol.run("study", track, study)


def run_networks(track: str, study: str, count: int) -> None:
    """Do the first networks of a study, as a run does that is killed before the others."""
    inputs.write_study(track, study)
    networks = grids.load(*grids.split_id(study), track).networks()[:count]
    list(protocol.do([step for row in networks for step in protocol.plan(row)], 1))


def failed_study(capfd, track: str, study: str) -> str:
    """The error of a study whose check or network fails, of which no network may be trained."""
    with pytest.raises(SystemExit):
        run_study(track, study)
    printed = capfd.readouterr()
    assert "epoch" not in printed.out, "something was trained"
    return printed.err


def stage_names(track: str, row: str) -> list[str]:
    """The stages of a row, in order."""
    return [step.name for step in protocol.plan(load_row(track, row))]


def stage_code(name: str, track: str, row: str) -> list[Path]:
    """The project files that this stage of the row depends on."""
    return code.closure(*protocol.planned(load_row(track, row), name).entries)


def study_entries(grid: grids.Grid) -> set[Path]:
    """The files from which the code of a study's networks is followed."""
    return {path for row in grid.networks() for step in protocol.plan(row) for path in step.entries}
