"""Stages cut by images, by Ray on this machine: a serial run's bytes, and each part computed once whatever is killed."""

from __future__ import annotations

import json
from pathlib import Path

import cluster_project
import pytest
from cluster_project import ROWS, locks
from tiny_project import Project

pytest.importorskip("ray", reason="Ray is not installed: pip install 'robust-vit-bench[ray]'")
pytestmark = pytest.mark.slow

ROW = ROWS[0]  # 20 images in batches of 6


def in_parts(project: Project) -> list[str]:
    """Asks for tasks of at most 6 images; the command that builds a row so."""
    (project.root / "resources.yaml").write_text(
        "default: {cores: 1, memory: 0.5}\ntracks:\n  tiny/attack: {images: 6}\n"
    )
    cluster_project.commit(project)
    return ["repro", ROW, "--track", "tiny", "--engine", "ray", "--jobs", "2"]


def left(project: Project) -> list[Path]:
    """Files of parts in the remote."""
    return [path for path in (project.root.parent / "remote" / "rvb-parts").rglob("*") if path.is_file()]


@pytest.mark.long
def test_parts_of_a_stage_give_the_bytes_of_the_serial_run(cluster, serial, counted) -> None:
    done = cluster.rvb(*in_parts(cluster))
    for part in ("0-6", "6-12", "12-18", "18-20"):
        assert f"attack-papers@{part} runs on" in done.stdout
    assert counted.times()["attack-papers", ROW] == 4 + 1
    assert {key: count for key, count in counted.times().items() if key[0] != "attack-papers"} == {
        (stage, ROW): 1 for stage in ("train", "reliability", "attention", "collect")
    }
    assert cluster.results(ROW) == serial.results(ROW)
    lock = f"pipelines/tiny/{ROW}/dvc.lock"
    assert locks(cluster)[lock] == locks(serial)[lock]
    assert not left(cluster)
    seconds = json.loads((cluster.root / "work/tiny" / ROW / "times/attack-papers.json").read_text())
    assert seconds["wall_seconds"] > 0


@pytest.mark.long
def test_parts_that_stand_in_the_remote_are_not_computed_again(cluster, serial, counted) -> None:
    """The stage that takes them up failed: the next run does that alone."""
    command = in_parts(cluster)
    stage = cluster.root / "benchmark/evaluation/suite.py"
    honest = stage.read_text()
    broken = honest.replace(
        "        state.warnings += flags(module, state)\n", "        raise BenchmarkError('no disk left')\n"
    ).replace("import torch\n", "import torch\nfrom benchmark.runtime.errors import BenchmarkError\n", 1)
    assert broken != honest
    stage.write_text(broken)
    cluster_project.commit(cluster)
    failed = cluster.rvb(*command, check=False)
    assert failed.returncode == 1
    assert "no disk left" in " ".join(failed.stderr.split())
    assert len({path.parent.name for path in left(cluster)}) == 4
    times = counted.times()["attack-papers", ROW]
    assert times == 4 + 1
    again = cluster.rvb(*command, check=False)
    assert again.returncode == 1
    assert counted.times()["attack-papers", ROW] == times + 1
    stage.write_text(honest)
    cluster_project.commit(cluster)
    cluster.rvb(*command)  # by other code: all anew
    assert counted.times()["attack-papers", ROW] == times + 1 + 4 + 1
    assert cluster.results(ROW) == serial.results(ROW)
