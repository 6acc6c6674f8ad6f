"""Orders and answers as text: what goes in comes out."""

from __future__ import annotations

import cluster_project
import pytest

from benchmark.loading.rows import load_row
from benchmark.pipeline import graph, inputs
from benchmark.pipeline.cluster.orders import Answer, Order, order
from benchmark.pipeline.cluster.pieces import Piece
from benchmark.pipeline.locks import put_entries
from benchmark.runtime import files

ROW = "Tiny2026Linear-small"


@pytest.fixture(autouse=True)
def _project(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(cluster_project.new(tmp_path / "project").root)


def test_an_order_says_by_which_code_and_takes_along_what_dvc_noted_of_what_it_reads() -> None:
    row = load_row("tiny", ROW)
    keys = graph.tasks_of("tiny", [row], {"pipelines/tiny/_data/dvc.yaml:data"})
    key, train = (f"pipelines/tiny/{ROW}/dvc.yaml:{stage}" for stage in ("attack-papers", "train"))
    reads = graph.reads("tiny", [row])[key]
    assert reads == ["pipelines/tiny/_data/dvc.yaml:data", train]
    entry = {"cmd": "x", "deps": [], "outs": []}
    put_entries({train: entry})
    found = order(key, Piece(keys[key].what), reads)
    assert found.locks == {train: entry}, "the data has none yet"
    assert found.inputs.encode() == files.to_json(inputs.of_stage(keys[key].what))
    assert (found.track, found.row, found.stage) == ("tiny", ROW, "attack-papers")
    assert Order.from_json(found.to_json()) == found


def test_an_answer_is_the_same_after_travelling() -> None:
    answer = Answer("a", {"cmd": "x"}, "{}", "words", True, "abacus", 2.5, "log\n")
    assert Answer.from_json(answer.to_json()) == answer
    assert Answer.from_json('{"key": "a", "error": "after b"}') == Answer("a", error="after b")
