"""The warm process: forks do the work of the processes that ask, with their output and status; killed, nothing is lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest
from stage_processes import wait_for
from tiny_project import Project

from benchmark.pipeline import dvc
from benchmark.pipeline.repro import repro
from benchmark.pipeline.warm import warm_process
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.warm_client import VARIABLE

pytestmark = pytest.mark.slow

ROW = "Tiny2026Net-small"


def ask(project, extra: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmark.stages", *arguments]
    environment = {**project.environment(), **extra}
    return subprocess.run(command, cwd=project.root, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.long
def test_a_fork_prints_and_ends_as_the_stage_itself_would(project, monkeypatch) -> None:
    project.add("Tiny2026Net", epochs=1)
    monkeypatch.chdir(project.root)
    project.run("benchmark.pipeline.inputs", "tiny")
    with warm_process() as place:
        extra = {VARIABLE: place}
        made = ask(project, extra, "data", "tiny")
        assert (made.returncode, made.stderr) == (0, "")
        assert made.stdout == ask(project, {}, "data", "tiny").stdout
        for arguments in (("train", "tiny", "Tiny2026Nett-small"), ("trainn", "tiny", ROW)):
            failed, alone = ask(project, extra, *arguments), ask(project, {}, *arguments)
            assert (failed.returncode, alone.returncode) == (1, 1)
            assert failed.stderr.splitlines()[-1] == alone.stderr.splitlines()[-1]
        train = ask(project, extra, "train", "tiny", ROW)
        assert train.returncode == 0, train.stderr
        here = (project.root / "work/tiny" / ROW / "train/model.safetensors").read_bytes()
        method = project.root / "submissions/Tiny2026Net/method.py"
        honest = method.read_text()
        method.write_text(honest + "\nraise SystemExit(0)\n")
        project.run("benchmark.pipeline.inputs", "tiny")
        for ended in (ask(project, extra, "train", "tiny", ROW), ask(project, {}, "train", "tiny", ROW)):
            assert ended.returncode == 1
            assert "does not import: it calls sys.exit(0)" in ended.stderr.splitlines()[-1]
        method.write_text(honest)
        project.run("benchmark.pipeline.inputs", "tiny")
    ask(project, {}, "train", "tiny", ROW)
    assert (project.root / "work/tiny" / ROW / "train/model.safetensors").read_bytes() == here


@pytest.mark.long
def test_another_folder_and_an_ended_process_are_not_served(project, monkeypatch, tmp_path) -> None:
    project.run("benchmark.pipeline.inputs", "tiny")
    other = Project.new(tmp_path / "other")
    other.run("benchmark.pipeline.inputs", "tiny")
    monkeypatch.chdir(other.root)
    with warm_process() as place:
        extra = {VARIABLE: place}
        assert ask(other, extra, "data", "tiny").returncode == 0, "it serves its own folder"
        assert ask(project, extra, "data", "tiny").returncode == 0, "done by the process that asked"
        assert (project.root / "work/tiny/data/data.json").exists()
    assert ask(project, extra, "data", "tiny").returncode == 0


def test_dvc_runs_as_a_fork_too_and_its_failure_is_told(project, monkeypatch) -> None:
    monkeypatch.chdir(project.root)
    project.add("Tiny2026Net", epochs=1)
    project.rvb("pipeline")
    with warm_process() as place:
        dvc.run(["repro", "-s", "pipelines/tiny/_data/dvc.yaml"], "data", lambda _: None, place)
        assert (project.root / "work/tiny/data/data.json").exists()
        assert "Running stage" in (project.root / "work/logs/data.log").read_text()
        with pytest.raises(BenchmarkError, match=r"nowhere.* \[log: work/logs/lost\.log\]"):
            dvc.run(["repro", "-s", "nowhere/dvc.yaml"], "lost", lambda _: None, place)


def test_a_board_alone_starts_no_warm_process(built, monkeypatch) -> None:
    def start() -> None:
        raise AssertionError("a warm process was started")

    monkeypatch.chdir(built.root)
    monkeypatch.setattr("benchmark.pipeline.repro.warm_process", start)
    shutil.rmtree(built.root / "work/tiny/site")
    said: list[str] = []
    repro("tiny", 1, said.append)
    assert (built.root / "work/tiny/site/index.html").exists()
    assert said[-1].startswith("done: open ")


@pytest.mark.long
@pytest.mark.parametrize("victim", ["fork", "rvb"])
def test_killed_in_rvb_repro_it_resumes_to_the_same_bytes(project, finished, victim) -> None:
    project.add("Tiny2026Net")
    command = [sys.executable, "-m", "benchmark.commands.main", "repro", "--track", "tiny"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    rvb = subprocess.Popen(command, cwd=project.root, env=project.environment(), start_new_session=True, **quiet)
    scratch = project.root / "work/scratch/tiny" / ROW / "train"
    wait_for(lambda: next(scratch.glob("*/training/checkpoint.safetensors"), None), "checkpoint")
    fork = int((scratch / "lock").read_text())
    os.kill(fork if victim == "fork" else rvb.pid, signal.SIGKILL)
    rvb.wait()
    assert rvb.returncode != 0
    project.remember(finished, but="train")
    project.rvb("repro", "--track", "tiny")
    assert project.results(ROW) == finished.results(ROW)
