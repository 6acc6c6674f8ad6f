"""Trained, fine-tuned and given weights side by side, with pictures, through the real pipeline."""

from __future__ import annotations

import json

import pytest
import tiny_linear_row
import torch
from stage_imports import planned_code, really_imported
from tiny_linear_row import LOADS, PICTURES
from tiny_project import Project
from torch import nn

pytestmark = pytest.mark.slow
VARIANTS = """\
  given:
    title: Given
    tracks: {tiny: {weights: {path: weights/given.pt}}}
  tuned:
    title: Fine-tuned
    tracks:
      tiny:
        training: {objective: standard, epochs: 1, batch_size: 64, learning_rate: 0.001, init_from: {row: Tiny2026Linear-given}}
"""


@pytest.mark.long
def test_each_kind_is_built_in_order_and_says_what_it_is(tmp_path) -> None:
    project: Project = tiny_linear_row.new(tmp_path / "project")
    folder = project.root / "submissions/Tiny2026Linear"
    (folder / "submission.yaml").write_text(tiny_linear_row.SUBMISSION + VARIANTS)
    (folder / "method.py").write_text(tiny_linear_row.METHOD + LOADS)
    (project.root / "benchmark/tracks/tiny.yaml").write_text(tiny_linear_row.TRACK + PICTURES)
    torch.manual_seed(0)
    (project.root / "weights").mkdir()
    torch.save(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).state_dict(), project.root / "weights/given.pt")
    project.rvb("repro", "--track", "tiny", "--jobs", "2")
    assert "up to date" in project.rvb("repro", "--track", "tiny").stdout
    trust = {}
    for variant in ("small", "given", "tuned"):
        path = project.root / f"work/tiny/Tiny2026Linear-{variant}/record/record.json"
        trust[variant] = json.loads(path.read_text())["trust"]
        page = (project.root / f"work/tiny/site/models/Tiny2026Linear-{variant}/index.html").read_text()
        assert 'src="pictures/perturbations.png" alt="Three rows' in page
        assert ("Not trained here" in page) == (variant == "given")
        assert ("Training started from" in page) == (variant == "tuned")
    # what goes back to weights from elsewhere was not trained from scratch
    assert trust == {"small": "rebuilt", "given": "re-evaluated", "tuned": "re-evaluated"}

    row = "Tiny2026Linear-given"
    for name in ("pretrained", "pictures"):
        assert really_imported(project, name, "tiny", row) == planned_code(project, row, name), name
