"""A study of the linear model on the tiny track, seconds long."""

from __future__ import annotations

from pathlib import Path

from stages import run_stage, run_study
from tiny_linear_row import METHOD
from tiny_project import Project

from benchmark.records.study import PublishedStudy
from benchmark.specs.rows import Network
from benchmark.studies import grids
from benchmark.studies.results import collect_study

STUDY = """\
title: A <table>
source: Table 1
track: tiny
variant: small
seeds: [0, 1]
cells:
  - {name: as it is}
  - {name: slower, set: {training.learning_rate: 0.001}}
axes:
  model.bias: [true, false]
measures:
  - {measure: clean}
  - {measure: attack, name: PGD, attack: {attack: pgd, norm: L2, eps: 0.5, parameters: {steps: 1, step_size: 0.25}}}
  - {measure: confidence, parameters: {shrink: 2}}
claims:
  slower, bias off: {clean: 0.25}
images: 10
figure: {draw: bars}
"""
MEASURES = """\
def confidence(model, images, labels, *, seed, shrink):
    logits = [float(model(images / shrink**k).max()) for k in range(3)]
    return {"largest": logits[0], "curve": logits, "x": [shrink**-k for k in range(3)]}
"""
RESULT = Path("work/tiny/studies/Tiny2026Linear-grid")
NAMES = ("tiny", "Tiny2026Linear-grid")


def network(cell: str, seed: int) -> str:
    """The folder of a network in the study's."""
    return Network(NAMES[1], cell, seed, images=0, measures=()).name


def add(project: Project, change: tuple[str, str] = ("", "")) -> Path:
    """Gives the project's linear model a study `grid`; the study's file."""
    folder = project.root / "submissions/Tiny2026Linear"
    (folder / "studies").mkdir(exist_ok=True)
    (folder / "method.py").write_text(
        METHOD.replace("build(data)", "build(data, *, bias=True)").replace("64, 10", "64, 10, bias")
    )
    (folder / "measures.py").write_text(MEASURES)
    assert change[0] in STUDY
    (folder / "studies/grid.yaml").write_text(STUDY.replace(*change) if change[0] else STUDY)
    return folder / "studies/grid.yaml"


def load() -> grids.Grid:
    return grids.load("Tiny2026Linear", "grid")


def run() -> PublishedStudy:
    """Prepare the track's data, do the study, and collect what `rvb publish` would write."""
    run_stage("data", "tiny")
    run_study(*NAMES)
    return collect_study(load())


def results(project: Project) -> dict[str, bytes]:
    folder = project.root / RESULT
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
