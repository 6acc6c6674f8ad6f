"""Cells of a study: those that start from another cell's network, and axes that reach a penalty by its name."""

from __future__ import annotations

import json
import re

import pytest
import tiny_linear_row
import tiny_study
import torch
from safetensors.torch import load_file

from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import submissions

STUDY = """\
title: Going on
source: Table 1
track: tiny
variant: small
seeds: [0, 1]
cells:
  - {name: first}
  - {name: second, set: {training.init_from: {cell: first}, training.learning_rate: 1.0e-12}}
measures:
  - {measure: clean}
images: 10
"""


@pytest.fixture
def project(studied):
    tiny_study.add(studied).write_text(STUDY)
    return studied


@pytest.mark.slow
def test_a_cell_goes_on_from_anothers_weights_of_its_seed(project) -> None:
    tiny_study.run()
    places = [(cell, seed) for cell in ("first", "second") for seed in (0, 1)]
    weights = {place: tiny_study.RESULT / tiny_study.network(*place) / "train/model.safetensors" for place in places}
    for seed in (0, 1):
        first, on = (load_file(weights[cell, seed]) for cell in ("first", "second"))
        assert all(torch.allclose(first[name], on[name], atol=1e-6) for name in first)
    assert not torch.equal(load_file(weights["first", 0])["1.weight"], on["1.weight"])
    runs = json.loads((project.root / tiny_study.RESULT / "study.json").read_text())["runs"]
    started = [run["training"]["init_sha256"] for run in runs]
    assert started == [None, None, *(files.sha256_file(weights["first", seed]) for seed in (0, 1))]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("{cell: first}", "{cell: frist}"), "starts from the cell 'frist', which is none; did you mean 'first'?"),
        (("{cell: first}", "{cell: second}"), "'second', which comes after it"),
        (("{cell: first}", "{cell: first, row: A-b}"), "name one"),
    ],
)
def test_a_start_that_is_no_earlier_cell_is_refused(loading, change, words) -> None:
    tiny_study.add(loading).write_text(STUDY.replace(*change))
    with pytest.raises(BenchmarkError, match=words):
        tiny_study.load()


PENALISED = tiny_linear_row.SUBMISSION.replace(
    "learning_rate: 0.01}", "learning_rate: 0.01, penalties: [{name: msvp, parameters: {lambda_q: 0.1}}]}"
)


def test_an_axis_reaches_a_penalty_by_its_name_and_no_other(loading) -> None:
    (submissions.FOLDER / "Tiny2026Linear/submission.yaml").write_text(PENALISED)
    axis = ("  model.bias: [true, false]", "  training.penalties.msvp.lambda_q: [0.0, 0.3]")
    file = tiny_study.add(loading, axis)
    file.write_text(file.read_text().partition("claims:")[0])
    cells = tiny_study.load().cells.values()
    assert [cell.training.penalties[0].parameters["lambda_q"] for cell in cells] == [0.0, 0.3, 0.0, 0.3]
    base = submissions.settings(submissions.load("Tiny2026Linear"), "small", "tiny").training
    assert base.penalties[0].parameters == {"lambda_q": 0.1}, "the variant's own setting moved"
    for key, message in (
        ("training.penalties.mvsp.lambda_q", "the variant has no penalty 'mvsp'; did you mean 'msvp'?"),
        ("training.penalties.msvp", "names no setting; write training.penalties.<name>.<parameter>"),
        ("training.penalties.0.name.x", "names no setting; write training.penalties.<name>.<parameter>"),
    ):
        tiny_study.add(loading, ("training.learning_rate: 0.001", f"{key}: 0.001"))
        with pytest.raises(BenchmarkError, match=re.escape(message)):
            tiny_study.load()
