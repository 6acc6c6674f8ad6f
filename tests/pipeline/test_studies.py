"""Studies by command: killed and resumed, published on the model's page, and nobody else's business."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_linear_row
import tiny_study
from stages import planned_code, really_imported, run_stage, stage_processes, wait_for

from benchmark.pipeline import inputs
from benchmark.runtime import code
from benchmark.studies import grids

pytestmark = pytest.mark.slow


@pytest.fixture
def project(tmp_path):
    made = tiny_linear_row.new(tmp_path / "project")
    tiny_study.add(made)
    made.rvb("pipeline")
    return made


@pytest.fixture(scope="module")
def studied(tmp_path_factory):
    """A project with its board, then its study. Not to be changed."""
    made = tiny_linear_row.new(tmp_path_factory.mktemp("studied") / "project")
    tiny_study.add(made)
    made.rvb("repro", "--track", "tiny")
    assert not (made.root / tiny_study.RESULT).exists(), "the board's target ran a study"
    made.rvb("study", "Tiny2026Linear", "grid")
    return made


@pytest.mark.long
def test_a_killed_study_goes_on_after_its_last_network_to_the_same_bytes(project, studied) -> None:
    study = subprocess.Popen(
        [sys.executable, "-m", "benchmark.commands.main", "study", "Tiny2026Linear", "grid"], cwd=project.root, env=project.environment(),
        start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    second, last = tiny_study.network("as it is, bias on", 1), tiny_study.network("slower, bias off", 1)
    measured = project.root / tiny_study.RESULT / second / "measure/stage.json"
    wait_for(measured.exists, "second network", 120)
    for pid in stage_processes(project, "study"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert study.wait() != 0
    output = project.rvb("study", "Tiny2026Linear", "grid").stdout
    assert f"Tiny2026Linear-grid/{second}: train is kept" in output
    assert f"Tiny2026Linear-grid/{second}: measure is kept" in output
    assert f"Tiny2026Linear-grid/{last}: train is kept" not in output
    assert re.search(r"slower, bias off\W+\d", output), "the table is printed"
    assert tiny_study.results(project) == tiny_study.results(studied)


@pytest.mark.long
def test_a_rows_seeds_run_by_command_and_stand_on_the_board_without_training_the_row(project) -> None:
    project.rvb("repro", "--track", "tiny")
    board = project.root / "work/tiny/site/index.html"
    assert "one training</small>" in board.read_text()
    output = project.rvb("study", "Tiny2026Linear-small", "seeds", "--track", "tiny").stdout
    assert "5 of 5 are done" in output
    project.rvb("publish", "Tiny2026Linear-small", "--study", "seeds", "--track", "tiny")
    assert "Tiny2026Linear-small: started" not in project.rvb("repro", "--track", "tiny").stdout
    assert "5 seeds</small>" in board.read_text()
    assert "one training</small>" not in board.read_text()
    page = (project.root / "work/tiny/site/models/Tiny2026Linear-small/index.html").read_text()
    assert "rvb study Tiny2026Linear-small seeds --track tiny</code>" in page


@pytest.mark.parametrize("study", ["Tiny2026Linear-grid", pytest.param("Tiny2026Linear-small-seeds", marks=pytest.mark.long)])
def test_the_inputs_of_a_networks_steps_are_what_they_really_import(project, study, monkeypatch) -> None:
    monkeypatch.chdir(project.root)
    inputs.write("tiny")
    run_stage("data", "tiny")
    inputs.write_study("tiny", study)
    loading = {path.as_posix() for path in code.closure(Path("benchmark/studies/grids.py"))}
    first = grids.load(*grids.split_id(study), "tiny").networks()[0].name
    for step in ("train", "measure"):
        really, planned = really_imported(project, step, "tiny", study), planned_code(project, first, step)
        assert really - loading == planned - loading
