"""Measures that take a model's attention: from the file to the table."""

from __future__ import annotations

import re

import numpy as np
import pyarrow.parquet as pq
import pytest
import tiny_study
from stages import failed_study, run_stage, study_entries
from tiny_project import edit

from benchmark.records.study_table import table
from benchmark.runtime import code
from benchmark.specs.components import ATTENTION

METHOD = """\
from torch import nn

from benchmark.layers.attention import SelfAttention
from benchmark.layers.residual import Residual
from benchmark.layers.tokens import MeanPool, Patchify


def build(data, *, depth=1):
    mixers = [Residual(SelfAttention(16, 2)) for _ in range(depth)]
    return nn.Sequential(Patchify(4), *mixers, MeanPool(), nn.Linear(16, 10))
"""
MEASURES = """\
import torch


def per_layer(model, images, labels, *, seed, attention):
    norms = {layer.name: float(layer.query.norm()) for layer in attention}
    return norms | {f"{name} of": torch.full((len(images),), norm) for name, norm in norms.items()}


def by_layer(model, images, labels, *, seed, attention):
    norms = [float(layer.query.norm()) for layer in attention]
    curve = {"x": [1.0 * place for place in range(1, len(norms) + 1)], "query": norms} if norms[1:] else {}
    return {"mean": sum(norms) / len(norms), "layers": len(norms), **curve}
"""
STUDY = """\
title: Attention
source: Figure 3
track: tiny
variant: small
seeds: [0, 1]
axes: {model.depth: [1, 2]}
measures:
  - {measure: clean}
  - {measure: by_layer}
  - {measure: per_layer, images: 4}
images: 10
"""
LABEL = "per_layer (first 4 images)"


@pytest.fixture
def project(studied):
    """A project with a small mixer whose study asks for norms of its attention, as working directory."""
    folder = studied.root / "submissions/Tiny2026Linear"
    (folder / "method.py").write_text(METHOD)
    (folder / "measures.py").write_text(MEASURES)
    (folder / "studies/grid.yaml").write_text(STUDY)
    return studied


@pytest.mark.slow
@pytest.mark.usefixtures("project", "walled")
def test_a_study_of_networks_of_other_depths_holds_their_layers_and_each_image() -> None:
    published = tiny_study.run()
    shallow, deep = (run.values for run in published.result.runs[::2])
    assert "by_layer: mean" in shallow
    assert published.result.x["by_layer: query"] == (1.0, 2.0), "one layer has no curve"
    assert f"{LABEL}: attention 2" in deep
    assert f"{LABEL}: attention 2" not in shallow

    evidence = pq.read_table(tiny_study.RESULT / "verdicts.parquet").to_pandas()
    deepest = evidence[(evidence.cell == "depth 2") & (evidence.seed == 0)]
    values = deepest[f"{LABEL}: attention 2 of"].to_numpy()
    assert np.isnan(values).tolist() == [False] * 4 + [True] * 6
    assert values[0] == pytest.approx(deep[f"{LABEL}: attention 2"])
    assert evidence[evidence.cell == "depth 1"][f"{LABEL}: attention 2 of"].isna().all()

    page, label = table(published), "by_layer: query"
    ((place, column),) = ((i, c) for i, c in enumerate(page.columns) if (c.label, c.x) == (label, 2.0))
    first, second = (line.entries[place] for line in page.lines)
    assert (column.text(first.mean), first.difference, second.difference, len(second.values)) == ("–", None, None, 2)
    assert f"{label} at 1: one setting, nothing to compare." in page.words


def test_only_a_study_that_asks_depends_on_what_finds_attention(project) -> None:
    assert ATTENTION in code.closure(*study_entries(tiny_study.load()))
    tiny_study.add(project)
    assert ATTENTION not in code.closure(*study_entries(tiny_study.load()))


def test_what_does_not_fit_stops_before_anything_is_trained(project, capfd) -> None:
    run_stage("data", "tiny")
    for file, old, new, message in (
        ("studies/grid.yaml", "images: 4", "parameters: {attention: 1}", "unknown parameter 'attention'"),
        ("method.py", "SelfAttention(16, 2)", "nn.Linear(16, 16)", "cell 'depth 1': .*: Sequential has no attention layer"),
    ):
        edit(project.root / "submissions/Tiny2026Linear" / file, old, new)
        assert re.search(message, failed_study(capfd, *tiny_study.NAMES))
        edit(project.root / "submissions/Tiny2026Linear" / file, new, old)
