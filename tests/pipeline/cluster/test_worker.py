"""One order in a checkout, with a stand-in for DVC: what is answered, and what is taken for lost."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import cluster_project
import pytest

from benchmark.loading.rows import load_row
from benchmark.pipeline import graph
from benchmark.pipeline.cluster import orders, parts, remote, worker
from benchmark.pipeline.cluster.orders import Answer, Order
from benchmark.pipeline.cluster.pieces import Piece
from benchmark.pipeline.locks import entry_of, put_entries
from benchmark.runtime import scratch
from benchmark.runtime.device import processor
from benchmark.runtime.errors import BenchmarkError
from benchmark.stages.base import inputs_file, part_folder

ROW = "Tiny2026Linear-small"
TRAIN = f"pipelines/tiny/{ROW}/dvc.yaml:train"
LOG = Path(f"work/logs/tiny-{ROW}-train.log")
ENTRY = {"cmd": "made", "deps": [], "outs": []}


@pytest.fixture
def order(tmp_path, monkeypatch) -> Order:
    """Of training a row, in a checkout; DVC's part always succeeds."""
    monkeypatch.chdir(cluster_project.new(tmp_path / "project").root)
    row = load_row("tiny", ROW)
    task = graph.tasks_of("tiny", [row], {"pipelines/tiny/_data/dvc.yaml:data"})[TRAIN]
    monkeypatch.setattr(remote, "fetch", lambda *_: False)
    monkeypatch.setattr(remote, "push", lambda key, _: entry_of(key))
    monkeypatch.setattr("benchmark.pipeline.dvc.run", lambda *_: ran())
    return orders.order(TRAIN, Piece(task.what), graph.reads("tiny", [row])[TRAIN])


def ran(log: str = "epoch 1\n", error: str = "") -> None:
    """As dvc.run leaves it."""
    LOG.parent.mkdir(parents=True, exist_ok=True)
    LOG.write_text(log)
    if error:
        raise BenchmarkError(f"{error} [log: {LOG}]")
    put_entries({TRAIN: ENTRY})
    times = Path("work/tiny") / ROW / "times/train.json"
    times.parent.mkdir(parents=True, exist_ok=True)
    times.write_text('{"wall_seconds": 1.0}')


def failing(monkeypatch, order: Order, log: str, error: str) -> Answer:
    monkeypatch.setattr("benchmark.pipeline.dvc.run", lambda *_: ran(log, error))
    return worker.carry_out(order)


def test_what_dvc_noted_and_how_long_it_took_is_answered(order) -> None:
    Path("order").write_text(order.to_json())
    worker.main("order", "answer")
    answer = Answer.from_json(Path("answer").read_text())
    assert (answer.key, answer.entry, answer.error, answer.lost) == (TRAIN, ENTRY, "", False)
    assert answer.times == '{"wall_seconds": 1.0}'
    assert answer.log == "epoch 1\n"
    assert answer.device == processor()
    assert answer.seconds >= 0
    assert inputs_file("tiny", ROW, "train").read_text() == order.inputs


def test_what_the_run_cache_knew_took_no_time(order, monkeypatch) -> None:
    monkeypatch.setattr(remote, "fetch", lambda *_: True)
    assert worker.carry_out(order).times == ""


@pytest.mark.parametrize(
    ("error", "log"),
    [
        ("failed to reproduce 'train': failed to run: python -m x, exited with -9", ""),
        ("failed to run: python -m x, exited with 137", ""),
        ("failed to run: python -m x, exited with 143", ""),
        (
            "submissions/X: the process that runs its code failed: it was ended by SIGKILL, perhaps for want of memory",
            "",
        ),
        ("failed to run: python -m x, exited with 1", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"),
        ("failed to run: python -m x, exited with 1", "Traceback\nMemoryError\n"),
        ("failed to run: python -m x, exited with 1", "RuntimeError: DefaultCPUAllocator: can't allocate memory: you"),
    ],
)
def test_a_kill_and_want_of_memory_are_no_fault_of_the_stage(order, monkeypatch, error, log) -> None:
    answer = failing(monkeypatch, order, log, error)
    assert answer.lost
    assert answer.error == error, "the coordinator names its own log"
    assert answer.log.endswith(log)
    assert not answer.entry


@pytest.mark.parametrize(
    "error", ["two images give (2, 11)", "exited with 1", "exited with 139", "it was ended by SIGSEGV"]
)
def test_any_other_failure_is_the_stages_own(order, monkeypatch, error) -> None:
    answer = failing(monkeypatch, order, "Traceback\n", error)
    assert not answer.lost
    assert answer.error == error


def test_results_that_could_not_be_sent_fail_with_the_reason(order, monkeypatch) -> None:
    def push(*_: object) -> None:
        raise BenchmarkError("could not send results: no space is left")

    monkeypatch.setattr(remote, "push", push)
    answer = worker.carry_out(order)
    assert (answer.error, answer.lost) == ("could not send results: no space is left", False)
    assert not answer.entry, "nobody finds them there"


def test_what_the_machine_itself_does_is_one_line(order, monkeypatch) -> None:
    def fetch(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(remote, "fetch", fetch)
    LOG.parent.mkdir(parents=True)
    LOG.write_text("of an earlier order")
    answer = worker.carry_out(order)
    assert answer.error == "OSError: [Errno 5] Input/output error"
    assert "earlier" not in answer.log


def test_a_checkout_of_other_code_or_settings_refuses(order, monkeypatch) -> None:
    submission = Path("submissions/Tiny2026Linear/submission.yaml")
    submission.write_text(submission.read_text().replace("epochs: 2", "epochs: 3"))
    answer = worker.carry_out(order)
    assert "would run train of Tiny2026Linear-small by other code or settings (training.epochs 2 -> 3)" in answer.error
    assert not answer.lost
    answer = worker.carry_out(
        replace(order, inputs=order.inputs.replace("benchmark/stages/train.py", "benchmark/x.py"))
    )
    assert "other code or settings (code: benchmark/" in answer.error


def test_a_machine_of_other_packages_that_came_later_refuses(order) -> None:
    """Those that were there when the run began were asked then."""
    answer = worker.carry_out(replace(order, packages=order.packages | {"numpy": "1.0"}))
    assert re.match(r"\S+ has numpy \S+, the coordinator 1\.0; install the same there", answer.error)
    assert not answer.entry
    assert not answer.lost


def test_a_part_that_could_not_be_sent_is_not_computed_again(order, monkeypatch) -> None:
    row, computed, sent = load_row("tiny", ROW), [], []
    folder = part_folder(row, "attack-papers", "0-6")
    key = f"pipelines/tiny/{ROW}/dvc.yaml:attack-papers"
    task = graph.tasks_of("tiny", [row], {"pipelines/tiny/_data/dvc.yaml:data"})[key]
    asked = orders.order(f"{key}@0-6", Piece(task.what, part="0-6"), graph.reads("tiny", [row])[key])

    def compute(_: Order) -> None:
        """As the stage leaves it (stages/base.py)."""
        computed.append(1)
        stage = f"tiny/{ROW}/attack-papers@0-6"
        with scratch.locked(stage, task.what.stage.identity(row, "attack-papers"), folder):
            folder.mkdir(parents=True)
            (folder / "seconds-0-6.json").write_text("{}")

    def send(*_: object) -> None:
        if not sent:
            sent.append(1)
            raise BenchmarkError("could not send part 0-6: no space is left")

    monkeypatch.setattr(worker, "_compute_part", compute)
    monkeypatch.setattr(parts, "known", lambda *_: False)
    monkeypatch.setattr(parts, "send", send)
    assert worker.carry_out(asked).error == "could not send part 0-6: no space is left"
    assert worker.carry_out(asked).error == ""
    assert len(computed) == 1
    assert not folder.exists()
    assert worker.carry_out(asked).error == ""
    assert len(computed) == 2, "nothing is left of it"
