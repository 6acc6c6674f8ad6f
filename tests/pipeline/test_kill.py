"""`kill -9` for real: of the stage, of dvc, of both; during training, attack and rendering. The record stays the same."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stages import stage_processes, wait_for
from tiny_project import Project

pytestmark = pytest.mark.slow

ROW = "Tiny2026Net-small"
DVC_FILE = f"pipelines/tiny/{ROW}/dvc.yaml"


@pytest.fixture(scope="module")
def with_data(tmp_path_factory):
    """A project with its data and nothing else: no results, cache or run-cache of the row. Not to be changed."""
    project = Project.new(tmp_path_factory.mktemp("data") / "project")
    project.add("Tiny2026Net")
    project.rvb("pipeline")
    project.run("dvc", "repro", "-s", "pipelines/tiny/_data/dvc.yaml")
    return project


@pytest.fixture(scope="module")
def with_weights(with_data, finished, tmp_path_factory):
    """The same with the row trained, as it was in the finished project. Not to be changed."""
    project = with_data.copy(tmp_path_factory.mktemp("weights") / "project")
    train = f"work/tiny/{ROW}/train"
    shutil.copytree(finished.root / train, project.root / train)
    project.run("dvc", "repro", "-s", f"{DVC_FILE}:train")
    return project


@pytest.fixture
def fresh(with_data, tmp_path):
    """A project that has yet to train."""
    return with_data.copy(tmp_path / "fresh")


def start(project, *arguments: str) -> subprocess.Popen:
    """dvc in a session of its own, as a person's terminal would run it."""
    command = [sys.executable, "-m", "dvc", "repro", *(arguments or ("-s", DVC_FILE))]
    with (project.root / "said").open("w") as said:
        return subprocess.Popen(
            command, cwd=project.root, env=project.environment(), start_new_session=True,
            stdout=said, stderr=subprocess.STDOUT,
        )  # fmt: skip


def scratch_file(project, stage: str, pattern: str) -> Path | None:
    return next((project.root / "work/scratch/tiny" / ROW / stage).glob(f"*/{pattern}"), None)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


MOMENTS = {
    "train": ("train", "training/checkpoint.safetensors"),
    "evaluate": ("attack-standard", "blocks/autoattack-*.safetensors"),
}


@pytest.mark.parametrize("victims", ["stage", *(pytest.param(one, marks=pytest.mark.long) for one in ("dvc", "both"))])
@pytest.mark.parametrize("moment", [pytest.param("train", marks=pytest.mark.long), "evaluate"])
def test_killed_runs_resume_to_the_same_bytes(with_data, with_weights, finished, moment, victims, tmp_path) -> None:
    """dvc resumes the killed stage; `rvb repro` makes the rest, to the Record, of steps whose results are there."""
    stage, checkpoint = MOMENTS[moment]
    fresh = (with_data if moment == "train" else with_weights).copy(tmp_path / "fresh")
    dvc = start(fresh)
    wait_for(lambda: scratch_file(fresh, stage, checkpoint), "checkpoint")
    (pid,) = stage_processes(fresh, moment)
    if victims in ("stage", "both"):
        kill(pid)
    if victims in ("dvc", "both"):
        kill(dvc.pid)
    dvc.wait()
    before = scratch_file(fresh, stage, checkpoint)
    if victims == "both":
        assert before is not None, "the partial work is gone"
    again = start(fresh, "-s", f"{DVC_FILE}:{moment}")
    most = 0
    while again.poll() is None:
        holders = [p for p in stage_processes(fresh, moment, forks=True) if holds_lock(fresh, stage, p)]
        most = max(most, len(holders))
        time.sleep(0.02)
    assert again.returncode == 0
    assert most <= 1
    if moment == "train" and victims != "dvc":  # a stage that was left alive goes on by itself: nothing is to be resumed
        assert "resuming after epoch" in (fresh.root / "said").read_text()
    fresh.remember(finished, ROW)
    fresh.rvb("repro", "--track", "tiny")
    assert not stage_processes(fresh, moment)
    assert fresh.results(ROW) == finished.results(ROW)


def test_a_command_that_is_told_to_end_leaves_nothing_running(fresh) -> None:
    rvb = subprocess.Popen(
        [sys.executable, "-m", "benchmark.commands.main", "repro", "--track", "tiny"], cwd=fresh.root, env=fresh.environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_for(lambda: scratch_file(fresh, "train", "training/checkpoint.safetensors"), "checkpoint")
    rvb.terminate()
    assert rvb.wait(timeout=60) == 128 + signal.SIGTERM
    wait_for(lambda: not stage_processes(fresh, "train", forks=True), "end")
    assert scratch_file(fresh, "train", "training/checkpoint.safetensors"), "the next run goes on from it"


def holds_lock(project, stage: str, pid: int) -> bool:
    """Whether this process is the one that owns the stage's scratch folder."""
    path = project.root / "work/scratch/tiny" / ROW / stage / "lock"
    inode = str(path.stat().st_ino) if path.exists() else "none"
    fields = (line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" not in line)
    return any(words[1] == "FLOCK" and words[4] == str(pid) and words[5].endswith(f":{inode}") for words in fields)


@pytest.mark.long
def test_an_orphan_is_waited_for(fresh, finished) -> None:
    """dvc is killed, its stage lives on: the next run says that it waits, and takes over what the orphan left."""
    dvc = start(fresh)
    wait_for(lambda: scratch_file(fresh, "train", "training/checkpoint.safetensors"), "checkpoint")
    kill(dvc.pid)
    dvc.wait()
    forks = stage_processes(fresh, "train", forks=True)
    for process in forks:
        os.kill(process, signal.SIGSTOP)
    again = subprocess.Popen(
        [sys.executable, "-m", "dvc", "repro", "-s", f"{DVC_FILE}:train"], cwd=fresh.root, env=fresh.environment(),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert again.stdout is not None
    for line in again.stdout:
        if "already running" in line:
            break
    else:
        raise AssertionError("the second run did not say that it waits")
    for process in forks:
        os.kill(process, signal.SIGCONT)
    assert "train is kept" in again.stdout.read()
    assert again.wait() == 0
    fresh.remember(finished, ROW)
    fresh.rvb("repro", "--track", "tiny")
    assert fresh.results(ROW) == finished.results(ROW)


@pytest.mark.long
def test_rendering_killed_at_any_moment_is_done_again(built) -> None:
    """Every page is there again, whether rendered anew or brought back by DVC (times.js alone is not kept by DVC)."""
    site = built.root / "work/tiny/site"

    def pages() -> dict[Path, bytes]:
        return {p.relative_to(site): p.read_bytes() for p in site.rglob("*") if p.is_file() and p != site / "times.js"}

    before = pages()
    for delay in (0.0, 1.0):
        dvc = start(built, "-f", "-s", "pipelines/tiny/dvc.yaml")
        wait_for(lambda: not (site / "index.html").exists(), "rendering anew")
        time.sleep(delay)
        os.killpg(dvc.pid, signal.SIGKILL)
        dvc.wait()
        built.rvb("repro", "--track", "tiny")
        assert pages() == before
