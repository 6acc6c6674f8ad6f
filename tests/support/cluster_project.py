"""Projects of linear rows, committed and with a DVC remote, as `rvb repro --engine` wants them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import tiny_linear_row
import torch
from tiny_project import Project, append, edit, git
from torch import nn

from benchmark.pipeline import generate, inputs

ROWS = ("Tiny2026Linear-small", "Tiny2026Linear-other")
OTHER = """\
  other:
    title: Linear, one epoch
    tracks:
      tiny:
        training: {objective: standard, epochs: 1, batch_size: 64, learning_rate: 0.01}
"""
GIVEN = """\
  given:
    title: Given
    tracks: {tiny: {weights: {path: weights/given.pt}}}
"""
TUNED = """\
  tuned:
    title: Fine-tuned
    tracks:
      tiny:
        training: {objective: standard, epochs: 1, batch_size: 64, learning_rate: 0.001, init_from: {row: Tiny2026Linear-given}}
"""


def with_given(root: Path) -> Project:
    """A project of three rows: trained, of given weights, which git ignores, and fine-tuned from those; with pictures."""
    project = new(root, GIVEN, TUNED)
    (root / "submissions/Tiny2026Linear/method.py").write_text(tiny_linear_row.METHOD + tiny_linear_row.LOADS)
    (root / "benchmark/tracks/tiny.yaml").write_text(tiny_linear_row.TRACK + tiny_linear_row.PICTURES)
    torch.manual_seed(0)
    (root / "weights").mkdir()
    torch.save(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).state_dict(), root / "weights/given.pt")
    return project


def new(root: Path, *variants: str) -> Project:
    """A project of the linear row and of these variants beside it, committed; its remote is the folder `remote` beside it."""
    project = tiny_linear_row.new(root)
    append(root / "submissions/Tiny2026Linear/submission.yaml", "".join(variants))
    with contextlib.chdir(root):
        generate.write()
        inputs.write("tiny")  # as a coordinator does before it sends an order
    edit(root / ".dvc/config", "[core]\n", "[core]\n    remote = store\n")
    append(root / ".dvc/config", f"['remote \"store\"']\n    url = {root.parent / 'remote'}\n")
    git("add", "-A", cwd=root)
    git("commit", "-qm", "As it stands", cwd=root)
    return project


def locks(project: Project) -> dict[str, bytes]:
    """The bytes of every lock file of the tiny track."""
    found = (project.root / "pipelines/tiny").rglob("dvc.lock")
    return {str(path.relative_to(project.root)): path.read_bytes() for path in found}


def site(project: Project) -> dict[str, bytes]:
    """The board's pages; times.js says how long stages took, and is no result."""
    home = project.root / "work/tiny/site"
    found = (path for path in home.rglob("*") if path.is_file() and path.name != "times.js")
    return {str(path.relative_to(home)): path.read_bytes() for path in found}
