"""Rows by Ray on this machine: what a serial run gives, to the byte, whatever is killed, out of reach or full meanwhile."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import cluster_project
import pytest
from cluster_project import OTHER, ROWS, locks, site
from counted_stages import Counted
from small_disk import fill, small_disk
from stage_processes import wait_for
from tiny_project import Project
from two_machines import out_of_reach

from benchmark.pipeline.cluster import ray_engine
from benchmark.pipeline.cluster.resources import Resources
from benchmark.runtime.errors import BenchmarkError

pytest.importorskip("ray", reason="Ray is not installed: pip install 'robust-vit-bench[ray]'")
pytestmark = pytest.mark.slow

ROW = ROWS[0]
STAGES = ("train", "attack-papers", "reliability", "attention", "collect")
ONCE = {(stage, row): 1 for row in ROWS for stage in STAGES}


@pytest.fixture(scope="module")
def counted(tmp_path_factory) -> Counted:
    return Counted(tmp_path_factory.mktemp("counted"))


@pytest.fixture(scope="module")
def committed(tmp_path_factory, counted) -> Project:
    """Two rows with their data and nothing else, committed. Not to be changed."""
    project = cluster_project.new(tmp_path_factory.mktemp("committed") / "project", OTHER)
    counted.watch(project)
    cluster_project.commit(project)
    project.run("dvc", "repro", "-s", "pipelines/tiny/_data/dvc.yaml")
    return project


@pytest.fixture(scope="module")
def serial(committed, tmp_path_factory) -> Project:
    """The same, brought up to date by `rvb repro --jobs 2`."""
    project = committed.copy(tmp_path_factory.mktemp("serial") / "project")
    project.rvb("repro", "--track", "tiny", "--jobs", "2")
    return project


@pytest.fixture
def project(committed, serial, counted, tmp_path, monkeypatch) -> Project:
    """One for a test, with a remote and checkouts of its own; nothing was counted yet."""
    found = committed.copy(tmp_path / "project")
    config = found.root / ".dvc/config"
    config.write_text(re.sub("url = .*", f"url = {tmp_path / 'remote'}", config.read_text()))
    monkeypatch.setenv("RVB_CHECKOUTS", str(tmp_path / "checkouts"))
    counted.clear()
    return found


def repro(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    return project.rvb("repro", *arguments, "--track", "tiny", "--engine", "ray", "--jobs", "2", check=False)


def start(project: Project, *arguments: str) -> subprocess.Popen[str]:
    """The same command, to be killed or to be waited for."""
    command = [sys.executable, "-m", "benchmark.commands.main", "repro", *arguments, "--track", "tiny"]
    return subprocess.Popen(
        [*command, "--engine", "ray", "--jobs", "2"], cwd=project.root, env=project.environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> str:
    """What it printed, once it ended well."""
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, f"{out}\n{err}"
    return out


def checkout(project: Project) -> Path:
    (found,) = (project.root.parent / "checkouts").iterdir()
    return found


def assert_row_as_serial(project: Project, serial: Project) -> None:
    assert project.results(ROW) == serial.results(ROW)
    lock = f"pipelines/tiny/{ROW}/dvc.lock"
    assert locks(project)[lock] == locks(serial)[lock]


def test_two_workers_give_the_bytes_of_the_serial_run_and_nothing_runs_twice(project, serial, counted) -> None:
    done = repro(project)
    assert done.returncode == 0, done.stderr
    assert counted.times() == ONCE
    for row in ROWS:
        assert project.results(row) == serial.results(row)
    assert locks(project) == locks(serial)
    assert site(project) == site(serial)
    assert all((project.root / "work/tiny" / ROW / "times" / f"{stage}.json").exists() for stage in STAGES)
    assert "done: open work/tiny/site/index.html" in done.stdout

    again = repro(project)
    assert again.returncode == 0, again.stderr
    assert counted.times() == ONCE
    assert locks(project) == locks(serial)
    assert "nothing would run" in project.rvb("repro", "--track", "tiny", "--dry-run").stdout


def test_a_killed_stage_is_tried_again_and_no_other_computes_twice(project, serial, counted) -> None:
    counted.hold("attack-papers")
    rvb = start(project, ROW)
    victim = counted.wait("attack-papers")
    os.kill(victim, signal.SIGKILL)
    counted.wait("attack-papers", 2)
    counted.release("attack-papers")
    out = ended(rvb)
    assert re.search(rf"{ROW}: attack-papers: .*exited with 137; tried again, 2 left", out.replace("\n", " ")), out
    assert counted.times() == {(stage, ROW): 1 + (stage == "attack-papers") for stage in STAGES}
    assert_row_as_serial(project, serial)


def test_a_killed_warm_process_is_replaced(project, serial, counted) -> None:
    """What ran on it as its fork goes on, and is waited for by the one that takes its place."""
    counted.hold("attack-papers")
    rvb = start(project, ROW)
    fork = counted.wait("attack-papers")
    warm = int(Path(f"/proc/{fork}/stat").read_text().rpartition(")")[2].split()[1])
    assert b"benchmark.pipeline.warm" in Path(f"/proc/{warm}/cmdline").read_bytes()
    os.kill(warm, signal.SIGKILL)
    counted.release("attack-papers")
    ended(rvb)
    times = counted.times()
    assert times.pop(("attack-papers", ROW)) <= 2
    assert set(times.values()) == {1}
    assert_row_as_serial(project, serial)


def test_a_coordinator_that_was_killed_goes_on_where_it_was(project, serial, counted) -> None:
    counted.hold("reliability")
    rvb = start(project, ROW)
    counted.wait("reliability")
    lock = project.root / f"pipelines/tiny/{ROW}/dvc.lock"
    wait_for(lambda: "attention" in lock.read_text(), "attention noted", 300)
    rvb.kill()
    rvb.communicate()
    counted.release("reliability")
    ended(start(project, ROW))
    times = counted.times()
    assert times.pop(("reliability", ROW)) <= 2, "the stage that was hit, no other"
    assert times == {(stage, ROW): 1 for stage in STAGES if stage != "reliability"}
    assert_row_as_serial(project, serial)


def test_a_remote_out_of_reach_for_some_seconds_costs_nothing_but_those(project, serial, counted) -> None:
    counted.hold("attack-papers")
    rvb = start(project, ROW)
    counted.wait("attack-papers")
    with out_of_reach(project.root.parent / "remote"):
        counted.release("attack-papers")
        made = checkout(project) / "work/tiny" / ROW / "attack-papers/stage.json"
        wait_for(made.exists, "results", 300)
        with pytest.raises(subprocess.TimeoutExpired):
            rvb.wait(timeout=5)
    ended(rvb)
    assert counted.times() == {(stage, ROW): 1 for stage in STAGES}
    assert_row_as_serial(project, serial)


def test_a_full_remote_is_one_line_and_after_there_is_room_nothing_is_computed_again(
    project, serial, counted, tmp_path
) -> None:
    with small_disk(tmp_path / "remote", 4096):
        counted.hold("attack-papers")
        rvb = start(project, ROW)
        counted.wait("attack-papers")
        filler = tmp_path / "remote" / "filler"
        fill(filler)
        counted.release("attack-papers")
        _, err = rvb.communicate(timeout=600)
        assert rvb.returncode == 1
        assert re.match(rf"error: could not send results of \S+{ROW}\S+ to the DVC remote: no space is left \(", err), (
            err
        )
        assert err.count("\n") == 1
        before = counted.times()
        filler.unlink()
        ended(start(project, ROW))
        assert {name: count for name, count in counted.times().items() if name in before} == before
        assert set(counted.times().values()) == {1}
    assert_row_as_serial(project, serial)


def test_one_coordinator_at_a_time_has_a_cluster_and_knows_what_its_machines_have(monkeypatch) -> None:
    engine = ray_engine.Ray("", 2)
    try:
        assert engine.places(Resources(memory=0.01)) == 2
        assert engine.places(Resources(cores=2, memory=0.01)) == 1
        assert engine.fits(Resources(cores=2, memory=0.01))
        assert not engine.fits(Resources(cores=3, memory=0.01))
        assert not engine.fits(Resources(memory=1e6))
        assert not engine.fits(Resources(memory=0.01, gpus=64))
        address = engine.ray.get_runtime_context().gcs_address
        other = (
            "from benchmark.pipeline.cluster import ray_engine\n"
            "from benchmark.runtime.errors import BenchmarkError\n"
            "ray_engine.WAIT = 1\n"
            "try:\n"
            f"    ray_engine.Ray({address!r}, 1)\n"
            "except BenchmarkError as error:\n"
            "    print(error)\n"
        )
        said = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True).stdout
    finally:
        engine.stop(end=True)
    assert said == (
        f"another `rvb repro --engine ray` runs on this cluster, from {os.uname().nodename}; wait for it or end it\n"
    )


def test_no_cluster_at_the_address_is_one_line() -> None:
    with pytest.raises(BenchmarkError, match=r"^no Ray cluster answers at 127\.0\.0\.1:9: ") as error:
        ray_engine.Ray("127.0.0.1:9", 1)
    assert "\n" not in str(error.value)
