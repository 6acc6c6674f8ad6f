"""Job arrays: what stands in the scripts, and what comes back, through a stand-in for SLURM (slurm_stand_in.py)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import cluster_project
import pytest
from cluster_project import OTHER, TUNED
from slurm_stand_in import Slurm

from benchmark.loading.rows import load_rows
from benchmark.pipeline import generate, graph
from benchmark.pipeline.cluster import pieces, site, slurm
from benchmark.pipeline.cluster.resources import Resources
from benchmark.pipeline.cluster.shipping import shipment
from benchmark.pipeline.locks import entry_of
from benchmark.runtime.errors import BenchmarkError

SMALL, WAITS, BESIDE = (f"Tiny2026Linear-{variant}" for variant in ("small", "tuned", "other"))
STAGES = ["train", "attack-papers", "attention", "reliability", "collect"]
TASK = """\
import json, pathlib, sys
run = pathlib.Path(__file__).parent
text = json.loads((run / "orders" / (sys.argv[1] + ".json")).read_text())[int(sys.argv[2])]
with (run.parent / "ran").open("a") as file:
    file.write(f"{sys.argv[1]} {sys.argv[2]} {json.loads(text)['key'] if text else None}\\n")
if text is None:
    sys.exit(0)
order = json.loads(text)
entry = {"cmd": order["stage"], "deps": [], "outs": []}
error = "the model gives 11 classes" if order["key"].endswith("other/dvc.yaml:attack-papers") else ""
answer = {"key": order["key"], "error": error, "times": '{"wall_seconds": 2.0}'} | ({} if error else {"entry": entry})
(run / "answers" / f"{sys.argv[1]}-{sys.argv[2]}.json").write_text(json.dumps(answer))
sys.exit(bool(error))
"""


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    return cluster_project.new(tmp_path_factory.mktemp("planned") / "project", OTHER, TUNED)


@pytest.fixture
def project(planned, tmp_path, monkeypatch):
    """A project of three rows, of which one starts from another's weights, as working directory."""
    found = planned.copy(tmp_path / "a project")  # with a space in its path
    monkeypatch.chdir(found.root)
    return found


@pytest.fixture
def standing(tmp_path, monkeypatch) -> Slurm:
    found = Slurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", found.path)
    return found


def key(row: str, stage: str) -> str:
    return f"pipelines/tiny/{row}/dvc.yaml:{stage}"


def everything() -> dict[str, object]:
    return graph.tasks_of("tiny", load_rows("tiny"), {f"{generate.data_file('tiny')}:data"})


def write(tasks, needs=None) -> list[slurm.Array]:
    needs = {one: Resources() for one in tasks} | (needs or {})
    sent = shipment({"name": "store", "url": "/mnt/shared", "password": "secret"})
    return slurm.write("tiny", *pieces.cut(tasks, needs), graph.reads("tiny", load_rows("tiny")), sent)


def test_rows_alike_share_arrays_and_one_that_starts_from_another_comes_after(project) -> None:
    made = {one.name: one for one in write(everything())}
    assert made["00-00-train"].keys == (key(BESIDE, "train"), key(SMALL, "train"))
    attack, collect = made["00-01-attack-papers"], next(one for one in made.values() if one.stage == "collect")
    assert attack.follows == ("00-00-train",)
    assert attack.name in collect.follows
    later = made["01-00-train"]
    assert later.keys == (key(WAITS, "train"),)
    assert (later.follows, later.after) == ((), ("00-00-train",))
    order = [*made]
    assert all(
        order.index(earlier) < order.index(one.name) for one in made.values() for earlier in one.follows + one.after
    )
    assert sorted(k for one in made.values() for k in one.keys if k) == sorted(everything())


def test_a_row_with_less_left_shares_the_arrays_and_has_nothing_to_do_in_some(project) -> None:
    tasks = {
        one: task for one, task in everything().items() if one not in (key(BESIDE, "train"), key(BESIDE, "attention"))
    }
    made = {one.stage: one for one in write(tasks) if one.name.startswith("00")}
    assert made["train"].keys == (key(SMALL, "train"), None)
    assert made["collect"].keys == (key(SMALL, "collect"), key(BESIDE, "collect"))
    assert "#  1: nothing to do\n" in (slurm.folder("tiny") / "00-00-train.sbatch").read_text()


def test_rows_that_take_other_resources_have_arrays_of_their_own(project) -> None:
    made = write(everything(), {key(BESIDE, "train"): Resources(cores=4)})
    trained = {one.keys: one.needs.cores for one in made if one.stage == "train" and WAITS not in str(one.keys)}
    assert trained == {(key(SMALL, "train"),): 1, (key(BESIDE, "train"),): 4}


def test_arrays_are_no_longer_than_slurm_takes(project, monkeypatch) -> None:
    monkeypatch.setattr(slurm, "LARGEST", 1)
    assert all(len(one.keys) == 1 for one in write(everything()))


def test_a_script_asks_for_what_the_stage_takes(project) -> None:
    write(everything(), {key(WAITS, "train"): Resources(cores=4, memory=7.5, gpus=0.5, minutes=59.5)})
    text = (slurm.folder("tiny") / "01-00-train.sbatch").read_text()
    for line in ("array=0-0", "cpus-per-task=4", "mem=7680M", "gpus-per-task=1", "time=1:00:00", "requeue"):
        assert f"\n#SBATCH --{line}\n" in text
    assert f"#  0: {key(WAITS, 'train')}\n" in text
    text = (slurm.folder("tiny") / "00-00-train.sbatch").read_text()
    assert "gpus" not in text
    assert "\n#SBATCH --time=12:00:00\n" in text
    assert (slurm.folder("tiny") / "shipment.json").stat().st_mode & 0o077 == 0, "it may hold passwords"


def test_arrays_run_in_order_and_what_they_answer_is_noted(project, standing, monkeypatch, tmp_path) -> None:
    """An element that fails keeps back its own row's later stages alone."""
    task = tmp_path / "task.py"
    task.write_text(TASK)
    monkeypatch.setattr(site, "__file__", str(task))
    write(everything())
    said: list[str] = []
    assert re.fullmatch(r"[\d\s]*sent 10 arrays", slurm.submit("tiny"))
    ran = [line.split() for line in (slurm.folder("tiny").parent / "ran").read_text().splitlines()]
    done = [k for _, _, k in ran]
    assert {*everything()} - {*done} == {key(BESIDE, "reliability"), key(BESIDE, "collect")}
    assert len(done) == len({*done})
    for row in (SMALL, WAITS):
        assert done.index(key(row, "train")) < done.index(key(row, "attack-papers")) < done.index(key(row, "collect"))
    assert "by a stand-in" in next((slurm.folder("tiny") / "logs").glob("*.log")).read_text()

    assert slurm.collect("tiny", said.append) == {key(BESIDE, "attack-papers"): "the model gives 11 classes"}
    assert said == [f"{key(BESIDE, 'attack-papers')}: the model gives 11 classes"]
    assert entry_of(key(WAITS, "collect"))["cmd"] == "collect"
    assert not entry_of(key(BESIDE, "attack-papers"))
    assert json.loads(Path(f"work/tiny/{SMALL}/times/train.json").read_text()) == {"wall_seconds": 2.0}


def test_while_arrays_wait_or_run_nothing_is_written_anew(project, standing, monkeypatch, tmp_path) -> None:
    task = tmp_path / "task.py"
    task.write_text(TASK)
    monkeypatch.setattr(site, "__file__", str(task))
    assert not slurm.ended("tiny"), "none was sent"
    write(everything())
    assert not slurm.ended("tiny"), "none was sent yet"
    slurm.submit("tiny")
    standing.queue("7", "103")
    with pytest.raises(BenchmarkError, match=r"^1 of the job arrays .* have not ended; wait, or run: scancel 103$"):
        slurm.ended("tiny")
    standing.queue("7")
    assert slurm.ended("tiny")
    assert not slurm.ended("tiny"), "that is known"


def test_without_squeue_nobody_knows_whether_they_have_ended(project, monkeypatch) -> None:
    write(everything())
    (slurm.folder("tiny") / slurm.SENT).write_text("103\n")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BenchmarkError, match=r"squeue is not installed here: .* remove work/slurm/tiny/jobs once"):
        slurm.ended("tiny")


def test_without_sbatch_the_line_says_where_to_run_what(project, monkeypatch) -> None:
    write(everything())
    monkeypatch.setenv("PATH", "")
    with pytest.raises(
        BenchmarkError, match=r"^sbatch is not installed here; .* run: bash work/slurm/tiny/submit\.sh$"
    ):
        slurm.submit("tiny")


def test_what_sbatch_refuses_is_one_line(project, standing) -> None:
    write(everything())
    standing.refuse()
    with pytest.raises(
        BenchmarkError, match=r"^sbatch refused: .*QOSMaxSubmitJobPerUserLimit; arrays sent before"
    ) as error:
        slurm.submit("tiny")
    assert "\n" not in str(error.value)
    assert not slurm.ended("tiny")


@pytest.mark.slow
@pytest.mark.long
def test_a_row_by_job_arrays_has_the_bytes_of_a_serial_run(cluster, serial, counted, standing) -> None:
    """A dry run writes, the next command sends, the one after closes and computes nothing."""

    def repro(*arguments: str) -> str:
        return cluster.rvb("repro", SMALL, "--track", "tiny", "--engine", "slurm", *arguments).stdout

    out = " ".join(repro("--dry-run").split())
    assert "5 stages in 5 job arrays: bash work/slurm/tiny/submit.sh sends them" in out
    assert "run the same command again without --dry-run" in out
    assert counted.begun() == []
    assert "sent 5 arrays" in repro()
    assert "by a stand-in" in (cluster.root / "work/slurm/tiny/logs/00-00-train-0.log").read_text()
    assert not (cluster.root / "work/tiny" / SMALL / "train").exists(), "results are in the remote"
    once = {(stage, SMALL): 1 for stage in STAGES}
    assert counted.times() == once
    assert repro().endswith("done\n")
    assert counted.times() == once
    assert cluster.results(SMALL) == serial.results(SMALL)
    lock = f"pipelines/tiny/{SMALL}/dvc.lock"
    assert cluster_project.locks(cluster)[lock] == cluster_project.locks(serial)[lock]
    assert (cluster.root / "work/tiny" / SMALL / "times/train.json").exists()
