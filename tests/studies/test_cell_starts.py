"""Cells of a study that start from another cell's network, of the same seed."""

from __future__ import annotations

import json

import pytest
import tiny_study
import torch
from safetensors.torch import load_file
from stages import run_stage, run_study

from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.studies import grids

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
    run_stage("data", "tiny")
    run_study(*tiny_study.NAMES)
    weights = {f"{c}-{s}": tiny_study.RESULT / f"{c}-{s}/train/model.safetensors" for c in (0, 1) for s in (0, 1)}
    for seed in (0, 1):
        first, on = (load_file(weights[f"{cell}-{seed}"]) for cell in (0, 1))
        assert all(torch.allclose(first[name], on[name], atol=1e-6) for name in first)
    assert not torch.equal(load_file(weights["0-0"])["1.weight"], on["1.weight"])
    runs = json.loads((project.root / tiny_study.RESULT / "study.json").read_text())["runs"]
    started = [run["training"]["init_sha256"] for run in runs]
    assert started == [None, None, *(files.sha256_file(weights[f"0-{seed}"]) for seed in (0, 1))]


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
    with pytest.raises(BenchmarkError, match=words) as raised:
        grids.load("Tiny2026Linear", "grid")
    assert "\n" not in str(raised.value)
