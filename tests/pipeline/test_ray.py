"""`rvb repro --engine ray`, on a local Ray: the bytes of one machine, whoever is killed."""

from __future__ import annotations

import ast
import os
import signal
from pathlib import Path

import cluster_project
import psutil
import pytest
import toy_rows
from stage_processes import wait_for
from tiny_project import ROOT

from benchmark.pipeline import ray

slow = pytest.mark.slow
ROWS = ["one", "two"]


@pytest.fixture(scope="module")
def serial(tmp_path_factory) -> dict[str, bytes]:
    """What plain `dvc repro` makes of the rows."""
    root = toy_rows.new(tmp_path_factory.mktemp("serial"), ROWS)
    toy_rows.run(root, "dvc", "repro", toy_rows.BOARD)
    return toy_rows.results(root)


@pytest.fixture
def root(tmp_path) -> Path:
    return toy_rows.new(tmp_path, ROWS)


def same(root: Path, serial: dict[str, bytes]) -> None:
    assert toy_rows.results(root) == serial


@slow
def test_results_and_locks_are_those_of_one_machine_and_a_second_run_computes_nothing(root, serial) -> None:
    status, said = toy_rows.ended(toy_rows.start(root, "ray", *ROWS))
    assert status == 0, said
    same(root, serial)
    assert len(toy_rows.begun(root)) == 8
    assert {path.name for path in (root / "work/tiny/two/times").iterdir()} >= {"train.json", "record.json"}
    assert toy_rows.ended(toy_rows.start(root, "ray", *ROWS)) == (0, "")
    assert len(toy_rows.begun(root)) == 8


@slow
@pytest.mark.long
def test_a_killed_worker_is_replaced(root, serial) -> None:
    (root.parent / "hold-certify").touch()
    coordinator = toy_rows.start(root, "ray", *ROWS)
    process = wait_for(
        lambda: next((p for _, stage, p in toy_rows.begun(root) if stage == "certify"), None), "certify", 200
    )
    worker = next(one for one in psutil.Process(process).parents() if one.name().startswith("ray::"))
    worker.send_signal(signal.SIGKILL)
    wait_for(lambda: sum(stage == "certify" for _, stage, _ in toy_rows.begun(root)) > 1, "another certify", 200)
    (root.parent / "hold-certify").unlink()
    status, said = toy_rows.ended(coordinator)
    assert status == 0, said
    same(root, serial)


@slow
@pytest.mark.long
def test_after_a_killed_coordinator_the_same_command_goes_on(root, serial) -> None:
    (root.parent / "hold-certify").touch()
    coordinator = toy_rows.start(root, "ray", *ROWS)
    lock = root / "pipelines/tiny/one/dvc.lock"
    wait_for(lambda: lock.exists() and any(stage == "certify" for _, stage, _ in toy_rows.begun(root)), "certify", 200)
    coordinator.kill()
    coordinator.wait()
    (root.parent / "hold-certify").unlink()
    done = [row for row in ROWS if (root / f"pipelines/tiny/{row}/dvc.lock").exists()]
    before = len(toy_rows.begun(root))
    status, said = toy_rows.ended(toy_rows.start(root, "ray", *ROWS))
    assert status == 0, said
    same(root, serial)
    again = {row for row, stage, _ in toy_rows.begun(root)[before:] if stage == "train"}
    assert not again & {*done}, "what was answered is not computed again"


@slow
@pytest.mark.long
def test_a_row_that_fails_is_named_and_the_others_stand(root, serial) -> None:
    (root.parent / "break-two-certify").touch()
    status, said = toy_rows.ended(toy_rows.start(root, "ray", *ROWS))
    assert status == 1
    last = said.splitlines()[-1]
    log = "work/logs/tiny-two-certify.log"
    assert last == f"error: 1 of 2 rows failed, so there is no new board: two: two has no certify [log: {log}]"
    assert "ERROR: two has no certify" in (root / log).read_text()
    record = "work/tiny/one/record/record.json"
    assert (root / record).read_bytes() == serial[record]
    assert not (root / "work/tiny/site").exists()
    (root.parent / "break-two-certify").unlink()
    assert toy_rows.ended(toy_rows.start(root, "ray", *ROWS))[0] == 0
    same(root, serial)


@slow
@pytest.mark.parametrize(
    ("variables", "words"),
    [
        pytest.param(
            {"TOY_DEVICE": "cuda"},
            "needs 1 GPU, which no machine of the cluster has; change params.yaml",
            marks=pytest.mark.long,
        ),
        ({"TOY_TORCH": "0.1"}, f"{os.uname().nodename} has torch "),
    ],
    ids=["GPU", "versions"],
)
def test_what_no_machine_can_do_is_refused(root, variables, words) -> None:
    status, said = toy_rows.ended(toy_rows.start(root, "ray", *ROWS, **variables))
    assert status == 1
    assert words in said.splitlines()[-1]
    assert "Traceback" not in said
    assert toy_rows.begun(root) == []


@slow
def test_no_remote_and_a_second_coordinator_are_refused(tmp_path, monkeypatch) -> None:
    from benchmark.pipeline import machines

    root = toy_rows.new(tmp_path, ROWS, remote=False)
    status, said = toy_rows.ended(toy_rows.start(root, "ray", *ROWS))
    assert (status, said.splitlines()[-1][:42]) == (1, "error: no default DVC remote carries the r")
    monkeypatch.chdir(root)
    with machines.alone():
        status, said = toy_rows.ended(toy_rows.start(root, "ray", *ROWS))
    assert (status, said.splitlines()[-1][:47]) == (1, "error: another `rvb repro --engine` runs in thi")


@slow
@pytest.mark.long
def test_records_are_those_of_one_machine(tmp_path) -> None:
    """Of real rows, one of which starts from the other's weights."""
    project = cluster_project.new(tmp_path / "project", cluster_project.TUNED)
    other = project.copy(tmp_path / "other")
    other.rvb("repro", "--track", "tiny", "--jobs", "2")
    project.rvb("repro", "--track", "tiny", "--jobs", "2", "--engine", "ray")
    for row in ("Tiny2026Linear-small", "Tiny2026Linear-tuned"):
        assert project.results(row) == other.results(row)
        assert any("record.json" in path for path in project.results(row))
    assert cluster_project.locks(project) == cluster_project.locks(other)
    assert cluster_project.site(project) == cluster_project.site(other)


def test_a_lock_entry_is_merged_as_dvc_writes_it(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    entry = "  {0}:\n    cmd: make {0}\n    outs:\n    - path: {0}\n      hash: md5\n      md5: '12'\n"
    head, file = "schema: '2.0'\nstages:\n", Path("dvc.yaml")
    file.write_text("stages:\n  first: {cmd: make first}\n  second: {cmd: make second}\n")
    ray.merge("dvc.yaml:second", head + entry.format("second"))
    ray.merge("dvc.yaml:first", head + entry.format("first") + entry.format("old"))
    assert file.with_name("dvc.lock").read_text() == head + entry.format("first") + entry.format("second")


def test_nothing_private_of_dvc_ray_or_submitit_is_imported() -> None:
    for path in (ROOT / "benchmark").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            modules = [f"{node.module}.{name}" for name in names] if isinstance(node, ast.ImportFrom) else names
            for module in modules:
                home, *rest = module.split(".")
                own = home in ("ray", "submitit") or home.startswith("dvc")
                assert not (own and any(part.startswith("_") for part in rest)), f"{path}: {module}"
