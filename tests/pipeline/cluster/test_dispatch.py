"""What is sent when, and what becomes of answers; by an engine of this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import cluster_project
import pytest
from cluster_project import OTHER, TUNED, FakeEngine

from benchmark.loading.rows import load_rows
from benchmark.pipeline import generate, graph
from benchmark.pipeline.cluster import pieces
from benchmark.pipeline.cluster.dispatch import COUNT, TRIES, Dispatch
from benchmark.pipeline.cluster.orders import Answer, Order
from benchmark.pipeline.cluster.resources import Resources
from benchmark.pipeline.locks import entry_of

SMALL, WAITS, BESIDE = (f"Tiny2026Linear-{variant}" for variant in ("small", "tuned", "other"))
STAGES = ["train", "attack-papers", "reliability", "attention", "collect"]


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A project of three rows, of which one starts from another's weights."""
    return cluster_project.new(tmp_path_factory.mktemp("planned") / "project", OTHER, TUNED)


@pytest.fixture
def here(planned, tmp_path, monkeypatch):
    monkeypatch.chdir(planned.copy(tmp_path / "project").root)


def key(row: str, stage: str) -> str:
    return f"pipelines/tiny/{row}/dvc.yaml:{stage}"


def done(order: Order) -> Answer:
    out = {"path": f"work/tiny/{order.row}/{order.stage}", "md5": "0.dir", "size": 1, "nfiles": 1}
    return Answer(order.key, {"cmd": order.stage, "deps": [], "outs": [out]}, device="abacus", seconds=2.0, log="said")


def dispatch(
    engine: FakeEngine, cores: dict[str, int] | None = None, clock: Callable[[], float] = time.monotonic
) -> tuple[Dispatch, list[str]]:
    """Over everything that the three rows need, and what it reports."""
    said: list[str] = []
    rows = load_rows("tiny")
    tasks = graph.tasks_of("tiny", rows, {f"{generate.data_file('tiny')}:data"})
    needs = {one: Resources(cores=(cores or {}).get(one.rpartition(":")[2], 1)) for one in tasks}
    return Dispatch(engine, *pieces.cut(tasks, needs), graph.reads("tiny", rows), said.append, clock=clock), said


@pytest.mark.usefixtures("here")
def test_every_stage_is_sent_once_after_what_it_reads_and_the_longest_way_first() -> None:
    known: dict[str, set[str]] = {}

    def answer(order: Order) -> Answer:
        known[order.key] = {*order.locks}
        return done(order)

    engine = FakeEngine(answer)
    run, said = dispatch(engine)
    assert run.run() == {}
    assert sorted(engine.sent) == sorted(key(row, stage) for row in (SMALL, WAITS, BESIDE) for stage in STAGES)
    for row in (SMALL, WAITS, BESIDE):
        place = {stage: engine.sent.index(key(row, stage)) for stage in STAGES}
        assert place["train"] < place["attack-papers"] < place["reliability"] < place["collect"]
        assert {key(row, "train"), key(row, "attack-papers")} <= known[key(row, "collect")], "what DVC noted goes along"
        assert entry_of(key(row, "train"))["cmd"] == "train", "and is noted here at once"
    assert engine.sent[:2] == [key(SMALL, "train"), key(BESIDE, "train")], "another row still waits for the first"
    assert engine.sent.index(key(WAITS, "train")) > engine.sent.index(key(SMALL, "train"))
    sent = [one for one in engine.sent if one.startswith(f"pipelines/tiny/{SMALL}/")]
    assert sent.index(key(SMALL, "attack-papers")) < sent.index(key(SMALL, "attention")), "reliability waits for it"
    assert run.seconds == {"abacus": 2.0 * len(engine.sent)}
    assert f"{SMALL}: done" in said
    assert f"{SMALL}: train runs on here, 1 of 15" in said
    assert Path(f"work/logs/tiny-{SMALL}-train.log").read_text() == "said"


@pytest.mark.usefixtures("here")
def test_a_little_more_than_can_run_is_sent_whatever_the_stages_take() -> None:
    engine = FakeEngine(done, places=1)
    run, _ = dispatch(engine)
    assert run.run() == {}
    assert engine.together <= 3
    engine = FakeEngine(done, places=4)
    run, _ = dispatch(engine, {"train": 4})
    assert run.run() == {}
    assert {engine.needs[key(row, "train")].cores for row in (SMALL, BESIDE)} == {4}
    assert engine.needs[key(SMALL, "collect")].cores == 1


@pytest.mark.usefixtures("here")
def test_a_lost_stage_is_tried_again_and_its_row_ends_as_if_nothing_had_been() -> None:
    lost = {key(SMALL, "train"): TRIES - 1, key(BESIDE, "collect"): 1}

    def answer(order: Order) -> Answer:
        if lost.get(order.key):
            lost[order.key] -= 1
            return Answer(order.key, error="its worker was killed", lost=True)
        return done(order)

    engine = FakeEngine(answer)
    run, said = dispatch(engine)
    assert run.run() == {}
    assert engine.sent.count(key(SMALL, "train")) == TRIES
    assert engine.sent.count(key(BESIDE, "collect")) == 2
    assert len(engine.sent) == 15 + TRIES
    assert f"{SMALL}: train: its worker was killed; tried again, 2 left" in said
    assert not any("failed" in line for line in said)


@pytest.mark.usefixtures("here")
def test_a_stage_that_is_lost_again_and_again_fails_its_row_and_the_rest_goes_on() -> None:
    engine = FakeEngine(
        lambda order: Answer(order.key, error="gone", lost=True) if order.key == key(SMALL, "train") else done(order)
    )
    run, said = dispatch(engine)
    assert run.run() == {
        SMALL: f"gone ({TRIES} times) [log: work/logs/tiny-{SMALL}-train.log]",
        WAITS: "starts from the weights of a row that failed",
    }
    assert engine.sent.count(key(SMALL, "train")) == TRIES
    assert {one for one in engine.sent if BESIDE in one} == {key(BESIDE, stage) for stage in STAGES}
    assert not any(WAITS in one for one in engine.sent)
    assert f"{BESIDE}: done" in said


@pytest.mark.usefixtures("here")
def test_a_stage_that_fails_by_itself_is_tried_once_and_its_row_is_named_once() -> None:
    def answer(order: Order) -> Answer:
        failed = order.row == BESIDE and order.stage in ("attack-papers", "attention")
        return Answer(order.key, error="the model gives 11 classes", log="why") if failed else done(order)

    engine = FakeEngine(answer)
    run, said = dispatch(engine)
    failed = run.run()
    assert [*failed] == [BESIDE]
    assert failed[BESIDE].startswith("the model gives 11 classes [log: work/logs/tiny-")
    assert engine.sent.count(key(BESIDE, "attack-papers")) == engine.sent.count(key(BESIDE, "attention")) == 1
    assert key(BESIDE, "collect") not in engine.sent
    assert said.count(f"{BESIDE}: failed") == 1
    assert {f"{SMALL}: done", f"{WAITS}: done"} <= {*said}
    assert not entry_of(key(BESIDE, "attack-papers"))
    assert entry_of(key(BESIDE, "train")), "what its other stages made stays"
    assert Path(f"work/logs/tiny-{BESIDE}-attack-papers.log").read_text() == "why"


@pytest.mark.usefixtures("here")
def test_times_that_came_with_an_answer_stand_where_a_run_here_would_leave_them() -> None:
    def answer(order: Order) -> Answer:
        found = done(order)
        return Answer(**{**vars(found), "times": '{"wall_seconds": 3.0}'}) if order.stage == "train" else found

    run, _ = dispatch(FakeEngine(answer))
    assert run.run() == {}
    times = Path("work/tiny") / SMALL / "times"
    assert (times / "train.json").read_text() == '{"wall_seconds": 3.0}'
    assert not (times / "collect.json").exists(), "the run-cache knew it"


@pytest.mark.usefixtures("here")
def test_machines_that_come_later_are_counted_and_a_run_without_any_says_so() -> None:
    engine, times = FakeEngine(done, places=1), [0.0]

    def later(order: Order) -> Answer:
        times[0] += COUNT
        engine._places = 0 if len(engine.sent) < 6 else 8
        return done(order)

    engine._answer = later
    run, said = dispatch(engine, clock=lambda: times[0])
    assert run.run() == {}
    assert said.count(f"no machine that is there has {Resources()}; stages that take it wait for one") == 1
    assert engine.together > 3
