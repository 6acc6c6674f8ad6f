"""What is refused before anything starts, and what becomes of a run; by an engine of this process, without DVC's part."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cluster_project
import pytest
from cluster_project import OTHER, ROWS, TUNED, FakeEngine
from edited_file import edit
from two_machines import out_of_reach

from benchmark.loading.rows import load_rows
from benchmark.pipeline import graph
from benchmark.pipeline.cluster import closing, coordinator, node
from benchmark.pipeline.cluster.orders import Answer, Order
from benchmark.pipeline.cluster.ray_engine import Ray
from benchmark.pipeline.locks import put_entries
from benchmark.pipeline.schedule import Task
from benchmark.runtime.errors import BenchmarkError

DATA = "pipelines/tiny/_data/dvc.yaml:data"
SMALL = ROWS[0]


@pytest.fixture(scope="module")
def committed(tmp_path_factory):
    return cluster_project.new(tmp_path_factory.mktemp("committed") / "project", OTHER)


@pytest.fixture
def project(committed, tmp_path, monkeypatch):
    """Two rows, committed, with a remote; as working directory."""
    found = committed.copy(tmp_path / "project")
    monkeypatch.chdir(found.root)
    return found


def no_engine() -> Any:
    raise AssertionError("an engine was started")


def refused(words: str, start=no_engine, names: tuple[str, ...] = ()) -> None:
    """A run is refused with one line, and says nothing else."""
    said: list[str] = []
    with pytest.raises(BenchmarkError, match=words) as error:
        coordinator.repro("tiny", start, said.append, names)
    assert "\n" not in str(error.value)
    assert said == []


def test_an_edit_that_is_not_committed(project) -> None:
    edit("submissions/Tiny2026Linear/method.py", "Linear(64", "Linear (64")
    refused(r"^submissions/Tiny2026Linear/method\.py differs from the commit")


def test_a_pipeline_that_no_longer_fits(project) -> None:
    edit("submissions/Tiny2026Linear/submission.yaml", "  other:", "  another:")
    refused(r"^pipelines/tiny/\S+ no longer fits the submissions; run `rvb pipeline` and commit")


def test_no_remote(project) -> None:
    edit(".dvc/config", "    remote = store\n", "")
    refused("^no DVC remote carries the results")


def test_a_remote_that_cannot_be_written(project, committed) -> None:
    with out_of_reach(committed.root.parent / "remote"):
        refused("^cannot write to the DVC remote store")


def test_an_unknown_row(project) -> None:
    refused(r"no variant 'smal'; did you mean 'small'\?", names=("Tiny2026Linear-smal",))


def test_another_coordinator_in_the_checkout(project) -> None:
    with coordinator._alone():
        refused("^another `rvb repro --engine` runs in this checkout; wait for it or end it$")
    with coordinator._alone():  # free again
        pass


def test_ray_that_is_not_installed(project, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    refused(r"^Ray is not installed here; run: pip install 'robust-vit-bench\[ray\]'$", lambda: Ray("", 1))


def test_a_stage_that_takes_more_than_any_machine_has(project) -> None:
    Path("resources.yaml").write_text("submissions: {Tiny2026Linear-other/train: {cores: 64, memory: 100}}\n")
    engine = FakeEngine(lambda _: Answer())
    refused(
        r"^pipelines/tiny/Tiny2026Linear-other/dvc\.yaml:train takes 64 cores, 100 GiB, more than any machine has; add one",
        lambda: engine,
    )
    assert engine.sent == []
    assert engine.ended
    assert not hasattr(engine, "shipment"), "nothing was brought to the machines"


def test_resources_of_nobody(project) -> None:
    Path("resources.yaml").write_text("submissions: {Tiny2026Lineal: {cores: 2}}\n")
    refused(r"^resources\.yaml: no submission or row is called 'Tiny2026Lineal'")


@pytest.fixture
def prepared(project, monkeypatch) -> dict[str, Task[Any]]:
    """As if the data were built and sent, and closing had nothing to fetch."""
    tasks = graph.tasks_of("tiny", load_rows("tiny"), {DATA})
    out = {"path": "work/tiny/data", "md5": "0.dir", "size": 1, "nfiles": 1}
    put_entries({DATA: {"cmd": "data", "deps": [], "outs": [out]}})
    monkeypatch.setattr(coordinator, "_prepared", lambda *_: (dict(tasks), {}))
    return tasks


def said_by_a_machine(**differs: Any) -> dict[str, Any]:
    own = node.here()
    said = {"host": "away", "clock": 1000.0, "cores": 8, "memory": 32.0, "processor": "abacus", "remote": "", **own}
    return {**said, "asked": 999.0, "answered": 1001.0, **differs}


@pytest.mark.usefixtures("prepared")
def test_a_machine_of_another_kind_is_refused_before_anything_is_sent() -> None:
    engine, said = FakeEngine(lambda _: Answer()), []
    engine.said = [said_by_a_machine(), said_by_a_machine(host="far", clock=5000.0)]
    with pytest.raises(BenchmarkError, match=r"^the clock of far differs from this machine's by 3999 s"):
        coordinator.repro("tiny", lambda: engine, said.append)
    assert said == ["away: 8 cores, abacus, 32.0 GiB"]
    assert engine.sent == []
    assert engine.ended


@pytest.fixture
def commands(monkeypatch) -> list[list[str]]:
    """What DVC would have been asked to do."""
    found: list[list[str]] = []
    monkeypatch.setattr("benchmark.pipeline.dvc.run", lambda arguments, *_, **__: found.append(arguments))
    monkeypatch.setattr("benchmark.pipeline.cluster.remote.bring", lambda *_, **__: None)
    monkeypatch.setattr(closing, "refresh_times", lambda *_: None)
    return found


def answered(order: Order) -> Answer:
    return Answer(order.key, {"cmd": order.stage, "deps": [], "outs": []}, seconds=1.0)


def test_a_run_sends_every_stage_and_closes_with_a_plain_repro(prepared, commands) -> None:
    engine, said = FakeEngine(answered), []
    coordinator.repro("tiny", lambda: engine, said.append)
    assert sorted(engine.sent) == sorted(prepared)
    assert engine.shipment.commit
    assert engine.ended is False, "nothing is left to be ended"
    assert commands == [["repro", "pipelines/tiny/dvc.yaml"]]
    assert said[-1] == "done: open work/tiny/site/index.html"


@pytest.mark.usefixtures("commands")
def test_results_of_a_row_come_here_as_it_ends_and_at_the_end_where_they_did_not(prepared, monkeypatch) -> None:
    brought: list[list[str]] = []

    def bring(keys: list[str], _: object, patience: float = 300.0) -> None:
        brought.append(keys)
        if not patience and ROWS[1] in keys[0]:
            raise BenchmarkError("could not reach it")

    monkeypatch.setattr("benchmark.pipeline.cluster.remote.bring", bring)
    said: list[str] = []
    coordinator.repro("tiny", lambda: FakeEngine(answered), said.append)
    by_row, at_the_end = brought[:-1], brought[-1]
    assert sorted(key for keys in by_row for key in keys) == sorted(at_the_end) == sorted(prepared)
    assert said.count(f"{ROWS[1]}: its results are fetched at the end, could not reach it") == 1


def test_a_row_that_fails_keeps_no_other_from_its_results_and_is_named_once(prepared, commands) -> None:
    engine, said = (
        FakeEngine(lambda order: Answer(order.key, error="no") if order.row == SMALL else answered(order)),
        [],
    )
    with pytest.raises(BenchmarkError, match=rf"^no \[log: .*\]; missing of 2 rows: {SMALL}; `--keep-going` renders"):
        coordinator.repro("tiny", lambda: engine, said.append)
    assert commands == [["repro", f"pipelines/tiny/{ROWS[1]}/dvc.yaml"]]
    assert said.count(f"{SMALL}: failed") == 1
    assert f"{ROWS[1]}: done" in said


def test_kept_going_the_board_shows_what_stands(prepared, commands, monkeypatch) -> None:
    rendered: list[Any] = []
    monkeypatch.setattr("benchmark.pipeline.partial_board.render", lambda *arguments: rendered.append(arguments))
    engine = FakeEngine(lambda order: Answer(order.key, error="no") if order.row == SMALL else answered(order))
    with pytest.raises(BenchmarkError, match=rf"missing of 2 rows: {SMALL}$"):
        coordinator.repro("tiny", lambda: engine, lambda _: None, keep_going=True)
    ((track, stand, failed, everything, _),) = rendered
    assert (track, stand, [*failed], everything) == ("tiny", [ROWS[1]], [SMALL], False)


@pytest.mark.usefixtures("prepared")
def test_interrupted_it_ends_what_runs_on_the_machines() -> None:
    def interrupt(_: Order) -> Answer:
        raise KeyboardInterrupt

    engine = FakeEngine(interrupt)
    with pytest.raises(KeyboardInterrupt):
        coordinator.repro("tiny", lambda: engine, lambda _: None)
    assert engine.ended
    with coordinator._alone():  # and lets another run
        pass


def test_a_stage_that_reads_what_only_this_machine_has_runs_here(project) -> None:
    rows, weights = load_rows("tiny"), Path("weights/given.pt")
    tasks = graph.tasks_of("tiny", rows, {DATA})
    assert coordinator._here("tiny", rows, tasks) == []
    train = f"pipelines/tiny/{SMALL}/dvc.yaml:train"
    one = tasks[train].what
    tasks[train] = Task(SimpleNamespace(reads=(*one.reads, weights), row=one.row, name=one.name), frozenset(), 1.0)
    assert coordinator._here("tiny", rows, tasks) == [train]
    tasks[train] = Task(
        SimpleNamespace(reads=(Path("params.yaml"), *one.reads), row=one.row, name=one.name), frozenset(), 1.0
    )
    assert coordinator._here("tiny", rows, tasks) == [], "git brings it to the machines"


def test_what_fails_here_fails_its_row_alone(project, monkeypatch) -> None:
    """A row that starts from its weights waits in vain; no stage of the two is sent to a machine."""
    edit("submissions/Tiny2026Linear/submission.yaml", OTHER, OTHER + TUNED)
    tasks, pushed, said = graph.tasks_of("tiny", load_rows("tiny"), {DATA}), [], []
    trains = [key for key in tasks if key.endswith(":train")]
    monkeypatch.setattr(coordinator, "_here", lambda *_: trains)
    monkeypatch.setattr("benchmark.pipeline.cluster.remote.push", lambda key, _: pushed.append(key))

    def run(arguments: list[str], *_: object, **__: object) -> None:
        if SMALL in arguments[-1]:
            raise BenchmarkError("weights/given.pt is missing")

    monkeypatch.setattr("benchmark.pipeline.dvc.run", run)
    failed = coordinator._run_here("tiny", load_rows("tiny"), tasks, said.append)
    assert failed == {SMALL: "weights/given.pt is missing", "Tiny2026Linear-tuned": coordinator.WAITS}
    assert pushed == [f"pipelines/tiny/{ROWS[1]}/dvc.yaml:train"]
    assert {task.what.row.name for task in tasks.values()} == {ROWS[1]}
    assert not any(key.endswith(":train") for key in tasks)
    assert said == [f"{SMALL}: failed"]


@pytest.mark.usefixtures("prepared")
def test_an_edit_while_machines_work_is_not_computed_here(commands) -> None:
    def answer(order: Order) -> Answer:
        if (order.row, order.stage) == (ROWS[1], "collect"):
            edit("submissions/Tiny2026Linear/submission.yaml", "epochs: 1,", "epochs: 7,")
        return answered(order)

    engine = FakeEngine(answer)
    with pytest.raises(BenchmarkError, match=r"^work/tiny/inputs/\S+ would change: code or settings were edited while"):
        coordinator.repro("tiny", lambda: engine, lambda _: None)
    assert len(engine.sent) == 10
    assert commands == []


@pytest.mark.usefixtures("prepared", "commands")
def test_a_board_that_lacked_rows_goes_with_the_next_run() -> None:
    lacking = Path("work/tiny/partial/missing.json")
    lacking.parent.mkdir(parents=True)
    lacking.write_text("{}")
    coordinator.repro("tiny", lambda: FakeEngine(answered), lambda _: None)
    assert not lacking.exists()
