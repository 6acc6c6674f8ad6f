"""Studies through DVC: their own target, killed and resumed, published on the model's page, and nobody else's business."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys

import pytest
import tiny_linear_row
import tiny_study
from stage_imports import planned_code, really_imported
from stage_processes import stage_processes, wait_for

from benchmark.pipeline import generate
from benchmark.studies import grids

pytestmark = pytest.mark.slow

DVC_FILE = "pipelines/tiny/_studies/Tiny2026Linear-grid/dvc.yaml"


@pytest.fixture
def project(tmp_path):
    made = tiny_linear_row.new(tmp_path / "project")
    tiny_study.add(made)
    made.rvb("pipeline")
    with contextlib.chdir(made.root):
        generate.write_study(grids.load("Tiny2026Linear", "grid", "tiny"))
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
    dvc = subprocess.Popen(
        [sys.executable, "-m", "dvc", "repro", DVC_FILE], cwd=project.root, env=project.environment(),
        start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    scratch = project.root / "work/scratch/tiny/studies/Tiny2026Linear-grid"
    wait_for(lambda: next(scratch.glob("*/0-1/run.json"), None), "second network", 120)
    for pid in stage_processes(project, "study"):
        subprocess.run(["kill", f"-{signal.SIGKILL.value}", str(pid)], check=True)
    assert dvc.wait() != 0
    output = project.rvb("study", "Tiny2026Linear", "grid").stdout
    assert "as it is, bias on, seed 0: training" not in output
    assert "as it is, bias on, seed 1: training" not in output
    assert "slower, bias off, seed 1: training" in output
    assert re.search(r"slower, bias off\W+\d", output), "the table is printed"
    assert tiny_study.results(project) == tiny_study.results(studied)
    assert "didn't change, skipping" in project.run("dvc", "repro", DVC_FILE).stdout


@pytest.mark.long
def test_a_study_is_published_on_its_models_page_and_runs_with_no_other_target(studied, tmp_path) -> None:
    project = studied.copy(tmp_path / "copy")
    before = tiny_study.results(project)
    project.rvb("publish", "Tiny2026Linear", "--study", "grid")
    output = project.rvb("repro", "--track", "tiny").stdout
    assert " of Tiny2026Linear-small, " not in output, "a published study is the board's alone"
    page = (project.root / "work/tiny/site/models/Tiny2026Linear-small/index.html").read_text()
    assert "A &lt;table&gt;" in page
    assert 'class="number claim">25.0<' in page
    tiny_study.add(project, ("{clean: 0.25}", "{clean: 0.5}"))
    ran = project.run("dvc", "repro", DVC_FILE).stdout
    assert f"Running stage '{DVC_FILE}" not in ran, "a claim costs no training"
    assert tiny_study.results(project) == before
    project.rvb("publish", "Tiny2026Linear", "--study", "grid")
    project.rvb("repro", "--track", "tiny")
    page = (project.root / "work/tiny/site/models/Tiny2026Linear-small/index.html").read_text()
    assert 'class="number claim">50.0<' in page


@pytest.mark.long
def test_a_rows_seeds_run_by_command_and_stand_on_the_board_without_training_the_row(project) -> None:
    project.rvb("repro", "--track", "tiny")
    board = project.root / "work/tiny/site/index.html"
    assert "one draw</small>" in board.read_text()
    output = project.rvb("study", "Tiny2026Linear-small", "seeds", "--track", "tiny").stdout
    assert "5 of 5: all, seed 4" in output
    project.rvb("publish", "Tiny2026Linear-small", "--study", "seeds", "--track", "tiny")
    assert "Tiny2026Linear-small: started" not in project.rvb("repro", "--track", "tiny").stdout
    assert "5 seeds</small>" in board.read_text()
    assert "one draw</small>" not in board.read_text()
    page = (project.root / "work/tiny/site/models/Tiny2026Linear-small/index.html").read_text()
    assert "rvb study Tiny2026Linear-small seeds --track tiny</code>" in page


@pytest.mark.parametrize(
    "study", ["Tiny2026Linear-grid", pytest.param("Tiny2026Linear-small-seeds", marks=pytest.mark.long)]
)
def test_its_inputs_are_what_it_really_imports(project, study) -> None:
    project.run("benchmark.pipeline.inputs", "tiny")
    project.run("benchmark.protocol", "data", "tiny")
    assert really_imported(project, "study", "tiny", study) == planned_code(project, f"_studies/{study}", "study")
