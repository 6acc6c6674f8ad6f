"""A row of a linear model on a tiny track, run in this process: quick enough for the fast tests."""

from __future__ import annotations

import contextlib
from pathlib import Path

from stages import run_stage
from tiny_project import Project

from benchmark.records.record import Record

TRACK = """\
version: 1
title: Tiny digits
description: A few digits, for tests.
data: {source: digits, seed: 0, validation: 40, test: 40, shape: [1, 8, 8], classes: 10}
evaluation: {images: 20, seed: 0, batch_size: 6}
suites:
  papers:
    - {attack: pgd, norm: L2, eps: 0.5, parameters: {steps: 1, step_size: 0.25, random_start: false}}
development:
  quick:
    - {attack: quick, norm: L2, eps: 0.5}
certified_radii: []
"""
SUBMISSION = """\
name: Tiny2026Linear
summary: A linear model for tests.
paper: {title: None, authors: Nobody, year: 2026}
variants:
  small:
    title: Linear
    tracks:
      tiny:
        training: {objective: standard, epochs: 2, batch_size: 64, learning_rate: 0.01}
"""
METHOD = """\
from torch import nn


def build(data):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""
OWN_CLASS = METHOD.replace("nn.Sequential(", "type('Own', (nn.Sequential,), {})(")  # not described, so not rebuilt
PICTURES = "pictures: {images: 3, eps: 0.3, radii: [1.0], steps: 5}\n"
LOADS = """

def pretrained(data, path):
    import torch
    model = build(data)
    model.load_state_dict(torch.load(path, weights_only=True))
    return model
"""
HEAD = "import torch\n\n\ndef attack(model, images, labels, threat, *, seed, **options):\n"
# the nearest rival's direction of a linear model, at the whole radius: exact but for the box
EXACT = (
    "import torch\n\n\n"
    "def attack(model, images, labels, threat, *, seed):\n"
    "    weight, rows = model[1].weight, torch.arange(len(labels))\n"
    "    gap = weight[labels][:, None] - weight\n"
    "    logits = model(images)\n"
    "    distance = (logits[rows, labels][:, None] - logits) / gap.norm(dim=-1)\n"
    "    distance[rows, labels] = float('inf')\n"
    "    away = gap[rows, distance.argmin(1)]\n"
    "    step = threat.eps * away / away.norm(dim=-1, keepdim=True)\n"
    "    return (images - step.view_as(images)).clamp(0, 1)\n"
)
NAMES = ("tiny", "Tiny2026Linear-small")
ROW = Path("work/tiny/Tiny2026Linear-small")
CONTRIBUTED = "attack: contributed, norm: L2, eps: 0.5"


def new(root: Path) -> Project:
    """Return a project with a submission of the linear model, not yet run."""
    project = Project.new(root)
    (project.root / "benchmark/tracks/tiny.yaml").write_text(TRACK)
    folder = project.root / "submissions/Tiny2026Linear"
    folder.mkdir()
    (folder / "submission.yaml").write_text(SUBMISSION)
    (folder / "method.py").write_text(METHOD)
    return project


def trained(root: Path) -> Project:
    """Return a project with the row run up to its Record, which is not made."""
    project = new(root)
    with contextlib.chdir(project.root):
        run()
    return project


def run() -> None:
    """Train, attack and probe the row of the project in the working directory."""
    run_stage("data", "tiny")
    run_stage("train", *NAMES)
    run_stage("attack-papers", *NAMES)
    run_stage("reliability", *NAMES)
    run_stage("attention", *NAMES)


def robust(project: Project, code: str | None = None, *specs: str) -> int:
    """Return the number of robust images of the row's Record after these attacks were contributed."""
    if code is not None:
        project.bring("Tiny2026Linear", "contributed", code, *(specs or (CONTRIBUTED,)))
        run_stage("attack-adaptive", *NAMES)
    run_stage("collect", *NAMES)
    return record().robust[0].accuracy.count


def record() -> Record:
    return Record.model_validate_json((ROW / "record/record.json").read_text())
