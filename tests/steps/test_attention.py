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
from tiny_project import append
from tiny_verified import BY_IMAGE, EVIDENCE, RECORD, change_column, change_json, sign, verification

from benchmark.evaluation.evidence import ATTENTION_COLUMNS, PATTERN_COLUMNS

pytestmark = pytest.mark.slow

VIT = """\
from benchmark.layers.vit import vision_transformer


def build(data):
    return vision_transformer(data, patch_size=4, width=16, depth=1, heads=2)
"""


COMPETITION = """\
from torch import nn

from benchmark.layers.competitive_attention import CompetitiveAttention
from benchmark.layers.lipschitz import NormalisedHead, OrthogonalLinear
from benchmark.layers.tokens import Patchify


def build(data):
    mixer = CompetitiveAttention(16, 2, side=2, window=4, budget=0.5)
    return nn.Sequential(Patchify(4), OrthogonalLinear(16, 16), mixer, nn.Flatten(), NormalisedHead(64, data.classes))
"""


def run_with(method: str, root: Path, *, certified: bool = False) -> Path:
    """The tiny project with another model in the place of the linear one, run to its Record."""
    project = tiny_linear_row.new(root / "project")
    folder = project.root / "submissions/Tiny2026Linear"
    (folder / "method.py").write_text(method)
    if certified:  # so that the network is rebuilt from its layers, whose patterns are then seen
        append(folder / "submission.yaml", "        certificate: {name: lipschitz}\n")
    with contextlib.chdir(project.root):
        tiny_linear_row.run()
        if certified:
            run_stage("certify", *NAMES)
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


def test_both_columns_are_counted_into_the_record_and_a_verification_asks_again(row) -> None:
    evidence, made = pq.read_table(EVIDENCE), record()
    assert made.attention is not None
    assert not {*PATTERN_COLUMNS.values()} & {*evidence.column_names}
    assert {*json.loads(RECORD.read_text())["attention"]} == {"uniform", "none"}, "as ever where no pattern is known"
    assert_counted(evidence, (made.attention.uniform, made.attention.none), ATTENTION_COLUMNS)
    content = verification()
    assert not content["lines"]
    assert {"what": "predictions with replaced attention", "count": 40} in content["checked"]
    name = ATTENTION_COLUMNS["uniform"]
    before = change_column(name, 3, lambda value: (value + 1) % 10)
    sign("evidence", EVIDENCE)
    assert f"image 3: {name.replace('_', ' ')}: {(before + 1) % 10} -> {before}" in verification()["lines"]


def test_patterns_of_a_network_that_reports_none_are_named_and_broken_columns_too(row) -> None:
    table = pq.read_table(EVIDENCE)
    name, values = PATTERN_COLUMNS["mean"], table["clean_prediction"]
    for column, line in (
        (values, f"{name}: the network has no such patterns"),
        (pa.array([None, *values.to_pylist()[1:]]), f"the evidence has no whole column '{name}'"),
    ):
        EVIDENCE.unlink()
        pq.write_table(table.append_column(name, column), EVIDENCE)
        sign("evidence", EVIDENCE)
        assert f"{line}:  -> " in verification()["lines"]


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


def test_patterns_that_layers_make_known_are_replaced_by_their_mean_and_by_another_images(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(run_with(COMPETITION, tmp_path, certified=True))
    evidence, made = pq.read_table(EVIDENCE), record()
    assert made.attention is not None
    assert_counted(evidence, (made.attention.mean, made.attention.other), PATTERN_COLUMNS)
    content = verification()
    assert not content["lines"]
    assert {"what": "predictions with replaced attention", "count": 80} in content["checked"]
    honest = {path: path.read_bytes() for path in (EVIDENCE, RECORD)}
    for name in PATTERN_COLUMNS.values():
        before = change_column(name, 3, lambda value: (value + 1) % 10)
        sign("evidence", EVIDENCE)
        assert f"image 3: {name.replace('_', ' ')}: {(before + 1) % 10} -> {before}" in verification()["lines"]
        for path, data in honest.items():
            path.write_bytes(data)
    change_json(RECORD, one_more("mean"))
    assert any(line.startswith(CHANGED) for line in verification()["lines"])


def test_a_network_without_attention_leaves_nothing(linear_row) -> None:
    run_stage("collect", *NAMES)
    assert record().attention is None
    assert "attention" not in json.loads(RECORD.read_text())
    assert not {*ATTENTION_COLUMNS.values()} & {*pq.read_table(EVIDENCE).column_names}
