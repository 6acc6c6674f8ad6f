"""The effect of attention in a row's network reaches its evidence, its Record and its replay."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_linear_row
from stages import run_stage
from tiny_linear_row import NAMES, record
from tiny_verified import BY_IMAGE, EVIDENCE, RECORD, change_column, change_json, sign, verification

from benchmark.evaluation.evidence import ATTENTION_COLUMNS, PATTERN_COLUMNS

pytestmark = pytest.mark.slow

VIT = """\
from benchmark.layers.vit import vision_transformer


def build(data):
    return vision_transformer(data, patch_size=4, width=16, depth=1, heads=2)
"""


OWN = f"""\
from torch import nn

{VIT.replace("def build", "def inner")}

class Own(nn.Sequential):
    pass


def build(data):
    return Own(inner(data))
"""


def run_with(method: str, root: Path) -> Path:
    """The tiny project with another model in the place of the linear one, run to its Record."""
    project = tiny_linear_row.new(root / "project")
    (project.root / "submissions/Tiny2026Linear/method.py").write_text(method)
    with contextlib.chdir(project.root):
        tiny_linear_row.run()
        run_stage("collect", *NAMES)
    return project.root


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_with(VIT, tmp_path_factory.mktemp("attention"))


@pytest.fixture
def row(built: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """It, as working directory; evidence, Record and numbers by image are put back afterwards."""
    monkeypatch.chdir(built)
    before = {path: path.read_bytes() for path in (EVIDENCE, RECORD, BY_IMAGE)}
    yield built
    for path, data in before.items():
        path.write_bytes(data)


def assert_counted(evidence: pa.Table, parts: tuple, columns: dict[str, str]) -> None:
    """Check the Record's numbers of correct and of changed predictions with attention replaced in each way."""
    label, clean = np.array(evidence["label"]), np.array(evidence["clean_prediction"])
    for part, name in zip(parts, columns.values(), strict=True):
        predicted = np.array(evidence[name])
        assert part.clean.count == (predicted == label).sum()
        assert part.changed == (predicted != clean).sum()


def test_all_columns_are_counted_into_the_record_and_a_verification_asks_again(row) -> None:
    evidence, made, columns = pq.read_table(EVIDENCE), record(), ATTENTION_COLUMNS | PATTERN_COLUMNS
    assert made.attention is not None
    assert_counted(evidence, [getattr(made.attention, what) for what in columns], columns)
    content, honest = verification(), EVIDENCE.read_bytes()
    assert not content["lines"]
    assert {"what": "predictions with replaced attention", "count": 80} in content["checked"]
    for name in columns.values():
        before = change_column(name, 3, lambda value: (value + 1) % 10)
        sign("evidence", EVIDENCE)
        assert f"image 3: {name.replace('_', ' ')}: {(before + 1) % 10} -> {before}" in verification()["lines"]
        EVIDENCE.write_bytes(honest)


def test_patterns_in_another_process_are_not_replaced_and_columns_of_them_not_believed(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(run_with(OWN, tmp_path))
    table = pq.read_table(EVIDENCE)
    name, values = PATTERN_COLUMNS["mean"], table["clean_prediction"]
    assert {*json.loads(RECORD.read_text())["attention"]} == {"uniform", "none"}
    for column, kind, line in (
        (values, "unchecked", "other patterns of attention: the network has none to compare"),
        (pa.array([None, *values.to_pylist()[1:]]), "lines", f"the evidence has no whole column '{name}':  -> "),
    ):
        EVIDENCE.unlink()
        pq.write_table(table.append_column(name, column), EVIDENCE)
        sign("evidence", EVIDENCE)
        assert line in verification()[kind]


CHANGED = "predictions that change when attention is replaced"


def one_more(part: str) -> Callable[[dict], object]:
    """Return a change of a Record: one more changed prediction."""
    return lambda content: content["attention"][part].update(changed=content["attention"][part]["changed"] + 1)


def test_a_record_that_says_otherwise_is_named(row) -> None:
    """One with a count that the evidence does not have, and one that leaves attention out."""
    for change, line in (
        (one_more("none"), CHANGED),
        (lambda content: content.pop("attention"), "uniform attention: none -> "),
    ):
        change_json(RECORD, change)
        assert any(words.startswith(line) for words in verification()["lines"])


def test_a_network_without_attention_leaves_nothing(linear_row) -> None:
    run_stage("collect", *NAMES)
    assert record().attention is None
    assert "attention" not in json.loads(RECORD.read_text())
    assert not {*ATTENTION_COLUMNS.values()} & {*pq.read_table(EVIDENCE).column_names}
