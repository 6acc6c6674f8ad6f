"""A certified row of a linear model, built and published on a tiny track, to be verified and tampered with."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import tiny_linear_row
import torch
from command import tiny_rvb as rvb
from safetensors.torch import load_file, save_file
from stages import run_stage
from tiny_linear_row import NAMES, ROW
from tiny_project import Project, append, edit

from benchmark.data.images import evaluation_split
from benchmark.runtime import files
from benchmark.specs import tracks

NAME = NAMES[1]
FGSM, PGD = "fgsm-Linf-0.05", "pgd-L2-0.5"
EVIDENCE, RECORD = ROW / "record/evidence.parquet", ROW / "record/record.json"
IMAGES, BY_IMAGE = ROW / "record/images.safetensors", ROW / "record/per_image.json"
STORED = ROW / "attack-more/adversarial.safetensors"  # a suite whose images the Record does not keep
WEIGHTS = ROW / "train/model.safetensors"
PUBLISHED = Path("leaderboard/results/tiny")


def new(root: Path) -> Project:
    """The project, not yet run; the probes look into the Linf ball, so that l2 is left to weak attacks."""
    project = tiny_linear_row.new(root)
    track = project.root / "benchmark/tracks/tiny.yaml"
    edit(track, "development:\n", "  more:\n    - {attack: fgsm, norm: Linf, eps: 0.05}\ndevelopment:\n")
    edit(track, "certified_radii: []", "certified_radii: [0.1, 0.3]")
    append(project.root / "submissions/Tiny2026Linear/submission.yaml", "        certificate: {name: lipschitz}\n")
    return project


def published(root: Path, of: Callable[[Path], Project] = new) -> Project:
    """The project that `of` makes, with its row built and published, without a sandbox."""
    project = of(root)
    edit(project.root / "params.yaml", "wall: full", "wall: none")
    with contextlib.chdir(project.root):
        run()
    return project


def run() -> None:
    """Builds and publishes the row of the project in the working directory."""
    run_stage("data", "tiny")
    for stage in ("train", "attack-papers", "attack-more", "certify", "reliability", "attention", "collect"):
        run_stage(stage, *NAMES)
    assert rvb("publish", NAME).exit_code == 0


def verification(*arguments: str) -> dict[str, Any]:
    """What `rvb verify --json` says of the row's only Record, or of the first; contradictions as lines without the row. Two
    certificates are made again unless `arguments` say otherwise.
    """
    result = rvb("verify", NAME, "--json", *(arguments or ("--sample", "2")))
    content = json.loads(result.stdout)[0]
    lines = []
    for one in content["contradictions"]:
        place = "" if one["image"] is None else f"image {one['image']}: "
        lines.append(f"{place}{one['what']}: {one['recorded']} -> {one['found']}")
    assert (result.exit_code == 0) == (not lines)
    return content | {"lines": lines}


def change_column(name: str, image: int, to: Callable[[Any], Any]) -> Any:
    """Changes one image's value in the evidence; the value before."""
    table = pq.read_table(EVIDENCE)
    values = table[name].to_pylist()
    before, values[image] = values[image], to(values[image])
    column = pa.array(values, type=table[name].type)
    pq.write_table(table.set_column(table.column_names.index(name), name, column), EVIDENCE)
    return before


def change_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def change_tensors(path: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    content = load_file(path)
    change(content)
    save_file(content, path)


def sign(name: str, path: Path) -> None:
    """Puts the digest that a file has now into the Record, as who tampers with both would."""
    change_json(RECORD, lambda record: record["sha256"].update({name: files.sha256_file(path)}))


def clean() -> tuple[torch.Tensor, torch.Tensor]:
    """The evaluation images (20, 1, 8, 8) and labels."""
    images = evaluation_split(Path("work/tiny/data"), tracks.load("tiny").evaluation)
    return torch.from_numpy(images.floats()), torch.from_numpy(images.labels)


def nearest(images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the linear model's images, what is just beyond the nearest rival's boundary, in the box, and how far that is in l2."""
    stored = load_file(WEIGHTS)
    weight, bias = stored["1.weight"].double(), stored["1.bias"].double()
    x, rows = images.flatten(1).double(), torch.arange(len(labels))
    gap = weight[labels][:, None] - weight
    logits = x @ weight.T + bias
    lead = logits[rows, labels][:, None] - logits
    distance = (lead / gap.norm(dim=-1).clamp(min=1e-9)).abs()
    distance[rows, labels] = torch.inf
    rival = distance.argmin(1)
    away = gap[rows, rival] / gap[rows, rival].norm(dim=-1, keepdim=True)
    moved = (x - 1.4 * distance[rows, rival][:, None] * away).clamp(0, 1).float().view_as(images)
    return moved, (moved - images).flatten(1).double().norm(dim=1)
