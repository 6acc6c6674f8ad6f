"""Rows by Ray on this machine: what a serial run gives, to the byte, whatever is killed, out of reach or full meanwhile."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from cluster_project import ROWS, locks, site
from small_disk import fill, small_disk
from stage_processes import wait_for
from tar_archive import archive
from tiny_project import Project
from two_machines import out_of_reach

from benchmark.pipeline.cluster import ray_engine
from benchmark.pipeline.cluster.resources import Resources
from benchmark.pipeline.cluster.site import Shipment
from benchmark.runtime.errors import BenchmarkError

pytest.importorskip("ray", reason="Ray is not installed: pip install 'robust-vit-bench[ray]'")
pytestmark = pytest.mark.slow

ROW = ROWS[0]
STAGES = ("train", "attack-papers", "reliability", "attention", "collect")
ONCE = {(stage, row): 1 for row in ROWS for stage in STAGES}


def repro(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    return project.rvb("repro", *arguments, "--track", "tiny", "--engine", "ray", "--jobs", "2", check=False)


@pytest.fixture
def start(cluster, counted) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts the same command for one row, to be killed or to be waited for; none outlives its test."""
    command = [sys.executable, "-m", "benchmark.commands.main", "repro", ROW, "--track", "tiny", "--engine", "ray"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen([*command, "--jobs", "2"], cwd=cluster.root, env=cluster.environment(), text=True, **pipes)
        )
        return started[-1]

    yield start
    counted.clear()  # stages that were held end
    for one in started:
        one.kill()
        one.communicate()


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


@pytest.mark.long
def test_two_workers_give_the_bytes_of_the_serial_run_and_nothing_runs_twice(cluster, serial, counted) -> None:
    done = repro(cluster)
    assert done.returncode == 0, done.stderr
    assert counted.times() == ONCE
    for row in ROWS:
        assert cluster.results(row) == serial.results(row)
    assert locks(cluster) == locks(serial)
    assert site(cluster) == site(serial)
    assert all((cluster.root / "work/tiny" / ROW / "times" / f"{stage}.json").exists() for stage in STAGES)
    assert "done: open work/tiny/site/index.html" in done.stdout

    again = repro(cluster)
    assert again.returncode == 0, again.stderr
    assert counted.times() == ONCE
    assert locks(cluster) == locks(serial)
    assert "nothing would run" in cluster.rvb("repro", "--track", "tiny", "--dry-run").stdout


@pytest.mark.long
def test_a_killed_stage_is_tried_again_and_no_other_computes_twice(cluster, serial, counted, start) -> None:
    counted.hold("attack-papers")
    rvb = start()
    victim = counted.wait("attack-papers")
    os.kill(victim, signal.SIGKILL)
    counted.wait("attack-papers", 2)
    counted.release("attack-papers")
    out = ended(rvb)
    assert re.search(rf"{ROW}: attack-papers: .*exited with 137; tried again, 2 left", out.replace("\n", " ")), out
    assert counted.times() == {(stage, ROW): 1 + (stage == "attack-papers") for stage in STAGES}
    assert_row_as_serial(cluster, serial)


@pytest.mark.long
def test_a_killed_process_of_ray_takes_its_order_along(cluster, serial, counted, start) -> None:
    """What holds the stage's place; the stage goes on by itself, and is waited for by the next order."""
    counted.hold("attack-papers")
    rvb = start()
    counted.wait("attack-papers")
    (holds,) = (
        one
        for one in psutil.Process(rvb.pid).children(recursive=True)
        if one.name().startswith("ray::") and "attack-papers" in "".join(one.cmdline())
    )
    holds.kill()
    counted.wait("attack-papers", 2)
    counted.release("attack-papers")
    out = ended(rvb)
    assert "tried again, 2 left" in out.replace("\n", " ")
    assert counted.times() == {(stage, ROW): 1 + (stage == "attack-papers") for stage in STAGES}
    assert_row_as_serial(cluster, serial)


@pytest.mark.long
def test_a_killed_warm_process_is_replaced(cluster, serial, counted, start) -> None:
    """What ran on it as its fork goes on, and is waited for by the one that takes its place."""
    counted.hold("attack-papers")
    rvb = start()
    fork = counted.wait("attack-papers")
    warm = int(Path(f"/proc/{fork}/stat").read_text().rpartition(")")[2].split()[1])
    assert b"benchmark.pipeline.warm" in Path(f"/proc/{warm}/cmdline").read_bytes()
    os.kill(warm, signal.SIGKILL)
    counted.release("attack-papers")
    ended(rvb)
    times = counted.times()
    assert times.pop(("attack-papers", ROW)) <= 2
    assert set(times.values()) == {1}
    assert_row_as_serial(cluster, serial)


@pytest.mark.long
def test_a_coordinator_that_was_killed_goes_on_where_it_was(cluster, serial, counted, start) -> None:
    counted.hold("reliability")
    rvb = start()
    counted.wait("reliability")
    lock = cluster.root / f"pipelines/tiny/{ROW}/dvc.lock"
    wait_for(lambda: "attention" in lock.read_text(), "attention noted", 300)
    rvb.kill()
    rvb.communicate()
    counted.release("reliability")
    ended(start())
    times = counted.times()
    assert times.pop(("reliability", ROW)) <= 2, "the stage that was hit, no other"
    assert times == {(stage, ROW): 1 for stage in STAGES if stage != "reliability"}
    assert_row_as_serial(cluster, serial)


@pytest.mark.long
def test_a_remote_out_of_reach_for_some_seconds_costs_nothing_but_those(cluster, serial, counted, start) -> None:
    counted.hold("attack-papers")
    rvb = start()
    counted.wait("attack-papers")
    with out_of_reach(cluster.root.parent / "remote"):
        counted.release("attack-papers")
        made = checkout(cluster) / "work/tiny" / ROW / "attack-papers/stage.json"
        wait_for(made.exists, "results", 300)
        with pytest.raises(subprocess.TimeoutExpired):
            rvb.wait(timeout=5)
    ended(rvb)
    assert counted.times() == {(stage, ROW): 1 for stage in STAGES}
    assert_row_as_serial(cluster, serial)


@pytest.mark.long
def test_a_full_remote_is_one_line_and_after_there_is_room_nothing_is_computed_again(
    cluster, serial, counted, start, tmp_path
) -> None:
    with small_disk(tmp_path / "remote", 4096):
        counted.hold("attack-papers")
        rvb = start()
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
        ended(start())
        assert {name: count for name, count in counted.times().items() if name in before} == before
        assert set(counted.times().values()) == {1}
    assert_row_as_serial(cluster, serial)


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


def test_a_machine_whose_packages_are_not_there_is_one_line(tmp_path) -> None:
    broken = {
        "benchmark/__init__.py": "",
        "benchmark/pipeline/__init__.py": "",
        "benchmark/pipeline/warm.py": "import no_torch\n",
    }
    engine = ray_engine.Ray("", 1)
    try:
        engine.start(Shipment("abc", archive(broken), "", home=str(tmp_path)))
        with pytest.raises(
            BenchmarkError, match=r"cannot take part: the warm process on \S+ ended: ModuleNotFoundError"
        ) as error:
            engine.introduced("0.dir")
    finally:
        engine.stop(end=True)
    assert "\n" not in str(error.value)
