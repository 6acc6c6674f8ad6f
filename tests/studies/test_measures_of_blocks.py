"""Measures that any study may ask for by name, and those that take a model's blocks: from the file to the table."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import tiny_study
from stages import failed_study, run_stage, run_study, study_entries

from benchmark.records.study_table import table
from benchmark.runtime import code
from benchmark.runtime.errors import BenchmarkError
from benchmark.studies import grids
from benchmark.studies.published import collect_study

METHOD = """\
from torch import nn

from benchmark.layers.residual import Residual
from benchmark.layers.tokens import MeanPool, Patchify


def build(data, *, depth=1):
    mixers = [Residual(nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16))) for _ in range(depth)]
    return nn.Sequential(Patchify(4), *mixers, MeanPool(), nn.Linear(16, 10))
"""
STUDY = """\
title: Blocks
source: Figure 3
track: tiny
variant: small
seeds: [0, 1]
axes: {model.depth: [1, 2]}
measures:
  - {measure: clean}
  - {measure: jacobian, images: 4, parameters: {quantities: [sigma_max, log_norm, encoder]}}
images: 10
"""
LABEL = "jacobian (first 4 images)"
JACOBIAN = Path("benchmark/studies/measures/jacobian.py")
BLOCKS = Path("benchmark/layers/submitted/blocks.py")


@pytest.fixture
def project(studied):
    """A project with a small mixer whose study asks for the Jacobians of its blocks, as working directory."""
    folder = studied.root / "submissions/Tiny2026Linear"
    (folder / "method.py").write_text(METHOD)
    (folder / "measures.py").unlink()
    (folder / "studies/grid.yaml").write_text(STUDY)
    return studied


def loaded() -> grids.Grid:
    return grids.load("Tiny2026Linear", "grid")


@pytest.mark.slow
def test_a_study_of_networks_of_other_depths_holds_their_blocks_and_each_image(project, walled) -> None:
    run_stage("data", "tiny")
    run_study(*tiny_study.NAMES)
    published = collect_study(loaded())
    shallow, deep = (run.values for run in published.result.runs[::2])
    assert len(shallow[f"{LABEL}: sigma_max: residual 1"]) == 21
    assert f"{LABEL}: sigma_max: residual 2" in deep
    assert f"{LABEL}: sigma_max: residual 2" not in shallow
    assert published.result.x[f"{LABEL}: log_norm: residual 2"][-1] == 1
    assert shallow[f"{LABEL}: encoder: norm"] == pytest.approx(shallow[f"{LABEL}: encoder: product of residual gains"])
    assert deep[f"{LABEL}: encoder: norm"] < deep[f"{LABEL}: encoder: product of residual gains"]

    evidence = pq.read_table(tiny_study.RESULT / "verdicts.parquet").to_pandas()
    deepest = evidence[(evidence.cell == "depth 2") & (evidence.seed == 0)]
    values = deepest[f"{LABEL}: sigma_max of residual 2"].to_numpy()
    assert np.isnan(values).tolist() == [False] * 4 + [True] * 6
    assert max(values[:4]) == deep[f"{LABEL}: sigma_max: residual 2"][-1]
    assert evidence[evidence.cell == "depth 1"][f"{LABEL}: sigma_max of residual 2"].isna().all()

    page, label = table(published), f"{LABEL}: sigma_max: residual 2"
    ((place, column),) = ((i, c) for i, c in enumerate(page.columns) if (c.label, c.x) == (label, 0.5))
    first, second = (line.entries[place] for line in page.lines)
    assert (column.text(first.mean), first.difference, second.difference, len(second.values)) == ("–", None, None, 2)
    assert f"{label} at 0: one setting, nothing to compare." in page.words


def test_only_a_study_that_asks_depends_on_the_measure_and_on_what_finds_blocks(project) -> None:
    files = code.closure(*study_entries(loaded()))
    assert {JACOBIAN, BLOCKS, Path("benchmark/layers/encoder_jacobian.py")} <= {*files}
    tiny_study.add(project)
    assert not {JACOBIAN, BLOCKS} & {*code.closure(*study_entries(loaded()))}
    measures = project.root / "submissions/Tiny2026Linear/measures.py"
    measures.write_text(tiny_study.MEASURES.replace("seed, shrink", "seed, blocks, shrink"))
    assert {BLOCKS} == {JACOBIAN, BLOCKS} & {*code.closure(*study_entries(loaded()))}


def test_the_submission_s_own_measure_of_the_name_goes_first(project) -> None:
    measures = project.root / "submissions/Tiny2026Linear/measures.py"
    text = "def jacobian(model, images, labels, *, seed, quantities):\n    return {'mine': float(len(images))}\n"
    measures.write_text(text)
    assert JACOBIAN not in study_entries(loaded())
    run_stage("data", "tiny")
    run_study(*tiny_study.NAMES)
    assert collect_study(loaded()).result.runs[0].values[LABEL] == 4


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("studies/grid.yaml", "measure: jacobian", "measure: jacobean", "no measure of that name; .*'jacobian'"),
        ("studies/grid.yaml", "{quantities", "{blocks: 1, quantities", "unknown parameter 'blocks'"),
        ("method.py", "Residual(nn", "nn.Sequential(nn", "cell 'depth 1': .*: Sequential has no encoder block"),
        ("method.py", "10))\n", "10))\n\n\ndef blocks(m):\n    return [('head', m[-1])]\n", "block 'head' gets"),
    ],
)
def test_what_does_not_fit_stops_before_anything_is_trained(project, capfd, file, old, new, message) -> None:
    path = project.root / "submissions/Tiny2026Linear" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    if "jacobean" in new:  # the study does not load
        with pytest.raises(BenchmarkError, match=message):
            run_study(*tiny_study.NAMES)
    else:
        run_stage("data", "tiny")
        assert re.search(message, failed_study(capfd, *tiny_study.NAMES))
