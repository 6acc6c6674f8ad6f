"""What rows took, how many run at a time, and on which GPU each."""

from __future__ import annotations

import math
import os
import shutil

import pytest
import torch
from tiny_linear_row import NAMES, ROW
from tiny_project import edit
from typer.testing import CliRunner

from benchmark.commands.main import app
from benchmark.pipeline import costs, dvc, repro
from benchmark.pipeline.gpus import default_jobs, places
from benchmark.runtime import files
from benchmark.specs.rows import load_row
from benchmark.specs.run_settings import EvaluateRun, RunSettings, TrainRun


def settings(train: str, evaluate: str, processes: int = 1) -> RunSettings:
    return RunSettings(train=TrainRun(device=train, processes=processes), evaluate=EvaluateRun(device=evaluate))


@pytest.fixture
def three_gpus(monkeypatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("three_gpus")
@pytest.mark.parametrize(
    ("there", "chosen", "jobs", "gpus"),
    [
        (3, settings("cpu", "cpu"), 8, [None] * 4),
        (3, settings("cuda", "cuda"), 3, ["0", "1", "2", "0"]),
        (3, settings("cuda", "cpu"), 3, ["0", "1", "2", "0"]),
        (3, settings("auto", "cpu"), 3, ["0", "1", "2", "0"]),
        (3, settings("cuda:1", "cuda:1"), 1, [None] * 4),
        (3, settings("cpu", "cuda:1"), 1, [None] * 4),
        (0, settings("auto", "auto"), 8, [None] * 4),
        (4, settings("cuda", "cpu", processes=2), 2, ["0,1", "2,3", "0,1", "2,3"]),
        (3, settings("cuda", "cpu", processes=2), 1, ["0,1"] * 4),
        (1, settings("cuda", "cpu", processes=2), 1, ["0"] * 4),
        (4, settings("cuda", "cpu", processes=4), 1, ["0,1,2,3"] * 4),
        (3, settings("cpu", "cpu", processes=3), 2, [None] * 4),
        (3, settings("cpu", "cpu", processes=16), 1, [None] * 4),
    ],
)
def test_a_stage_has_a_core_or_a_gpu_for_each_of_its_processes(monkeypatch, there, chosen, jobs, gpus) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    assert default_jobs(chosen) == jobs
    free = places(chosen, 4)
    assert [free.get() for _ in range(4)] == gpus
    assert free.empty()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 7,GPU-1a")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert places(settings("cuda", "cuda"), 2).get() == "4", "the GPUs that this process sees"


@pytest.mark.usefixtures("three_gpus")
@pytest.mark.parametrize(("options", "jobs"), [([], 3), (["--jobs", "5"], 5)])
def test_rvb_repro_runs_a_stage_a_gpu_unless_jobs_says_otherwise(tmp_path, monkeypatch, options, jobs) -> None:
    (tmp_path / "params.yaml").write_text("train: {device: cuda}\nevaluate: {device: cuda}\n")
    monkeypatch.setattr("benchmark.specs.run_settings.PARAMS", tmp_path / "params.yaml")
    asked = []
    monkeypatch.setattr("benchmark.pipeline.repro.repro", lambda track, jobs, *_: asked.append(jobs))
    result = CliRunner().invoke(app, ["repro", *options])
    assert result.exit_code == 0, result.output
    assert asked == [jobs]


@pytest.mark.slow
def test_a_stage_sees_the_gpu_that_it_was_given_alone(project, monkeypatch) -> None:
    """Through the processes for real: rvb runs dvc, which runs the stage, which looks."""
    monkeypatch.chdir(project.root)
    monkeypatch.setenv("PYTHONPATH", str(project.root))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    says = '        print(f"{split}: sha256 {digest}")\n'
    sees = '        print("sees", os.environ["CUDA_VISIBLE_DEVICES"])\n'
    edit(project.root / "benchmark/steps/data.py", says, says + sees)
    project.add("Tiny2026Net", epochs=1)
    project.rvb("pipeline")
    dvc.run(["repro", "pipelines/tiny/_data/dvc.yaml"], "data", print, variables={"CUDA_VISIBLE_DEVICES": "2"})
    assert "sees 2\n" in (project.root / "work/logs/data.log").read_text()


def test_what_was_published_is_known_where_nothing_ran(linear_row) -> None:
    row = load_row(*NAMES)
    seconds = {"wall_seconds": 2.0, "core_seconds": 1.5, "cost_seconds": 1.5}
    for step in ("train", "attack-papers", "reliability", "attention", "collect"):
        files.write_json(ROW / f"times/{step}.json", seconds)
    assert repro.haste(row)[0] == -10.0
    costs.publish("tiny", [row.name])
    shutil.rmtree(ROW / "times")
    assert repro.haste(row)[0] == -10.0
    files.write_json(ROW / "times/train.json", {"wall_seconds": 7.0, "core_seconds": 7.0, "cost_seconds": 7.0})
    assert repro.haste(row)[0] == -15.0
    planned = CliRunner().invoke(app, ["plan", "--track", "tiny"])
    assert "together 15 s, 13 core-seconds" in planned.stdout
    (costs.PUBLISHED / "tiny" / costs.FILE).unlink()
    assert repro.haste(row)[0] == -math.inf
    assert "4 steps never ran here" in CliRunner().invoke(app, ["plan", "--track", "tiny"]).stdout
