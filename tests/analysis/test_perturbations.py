"""Perturbation pictures: exact on models whose perturbations are known, deterministic bytes, and what PGD breaks counts."""

from __future__ import annotations

import hashlib
import io
import json

import numpy as np
import pyarrow as pa
import pytest
import tiny_linear_row
import torch
from PIL import Image
from pydantic import ValidationError
from stages import run_stage
from tiny_linear_row import NAMES, PICTURES, ROW
from tiny_record import record
from torch import nn

from benchmark.analysis.grids import CELL, GAP, png
from benchmark.analysis.perturbations import accumulated, grey, noise, perturbed, rescaled, semantic_content
from benchmark.evaluation import evidence
from benchmark.loading import tracks
from benchmark.pipeline import generate
from benchmark.results.record import Record
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.pictures import PicturesSpec
from benchmark.specs.threat import ThreatModel
from benchmark.verdicts.ball import distances
from leaderboard import build
from leaderboard.rank import rank


class OnePixelAClass(nn.Module):
    """Class k is pixel k: PGD darkens the label's pixel and lightens all others, each by the whole radius."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 3 * x.flatten(1)


MODEL = OnePixelAClass().eval()
GREYS, LABELS = torch.full((10, 1, 2, 5), 0.5), torch.arange(10)


def test_perturbations_of_a_known_model_are_exact() -> None:
    threat = ThreatModel(norm="Linf", eps=0.25)
    found = perturbed(MODEL, GREYS, LABELS, threat, steps=20)
    expected = torch.where(torch.eye(10, dtype=torch.bool), 0.25, 0.75).view_as(GREYS)
    assert torch.equal(found, expected)
    assert torch.equal(rescaled(found - GREYS, 0.25), 1 - torch.eye(10).view_as(GREYS))
    assert torch.equal(found, perturbed(MODEL, GREYS, LABELS, threat, steps=20))


def test_semantic_content_counts_what_classifiers_read_in_the_perturbation() -> None:
    classifiers = {
        "dark": lambda x: -x.flatten(1),
        "light": lambda x: x.flatten(1),
        "constant": lambda x: torch.zeros(len(x), 10),  # ties with all others
        "second": lambda x: -x.flatten(1) + 2 * torch.eye(10)[(x.flatten(1).argmin(1) + 1) % 10],
    }
    first = semantic_content(MODEL, GREYS, LABELS, classifiers, eps=0.25, steps=20, top=1, batch_size=4)
    assert first == {"dark": 1.0, "light": 0.0, "constant": 0.0, "second": 0.0}
    turned = semantic_content(MODEL, GREYS, LABELS, classifiers, eps=0.25, steps=20, top=1, negative=True)
    assert (turned["dark"], turned["light"]) == (0.0, 1.0)
    top = semantic_content(MODEL, GREYS, LABELS, classifiers, eps=0.25, steps=20, top=2)
    assert top == {"dark": 1.0, "light": 0.0, "constant": 0.0, "second": 1.0}
    with pytest.raises(ValueError, match="every answer would be right"):
        semantic_content(MODEL, GREYS, LABELS, classifiers, eps=0.25, top=10)
    with pytest.raises(ValueError, match="needs a classifier and an image"):
        semantic_content(MODEL, GREYS, LABELS, {}, eps=0.25)


def test_noise_is_seeded_and_names_every_class_before_one_again() -> None:
    starts, targets = noise((1, 2, 5), 4, 10, 0)
    again, same = noise((1, 2, 5), 4, 10, 0)
    assert torch.equal(starts, again)
    assert torch.equal(targets, same)
    assert not torch.equal(starts, noise((1, 2, 5), 4, 10, 1)[0])
    assert sorted(targets[:4].tolist()) == sorted(targets[4:8].tolist()) == [0, 1, 2, 3]
    assert len(starts) == len(targets) == 10


def test_accumulated_gradients_lead_to_the_class_inside_the_ball() -> None:
    starts, targets = noise((1, 2, 5), 10, 10, 0)
    threat = ThreatModel(norm="L2", eps=0.2)
    found = accumulated(MODEL, starts, targets, threat, steps=20)
    moved = distances(found, starts)["L2"]
    assert (moved <= 0.2 + 1e-12).all()
    assert (moved > 0.1).all()
    assert found.min() >= 0
    assert found.max() <= 1
    gained = (found - starts).flatten(1)
    assert (gained.argmax(1) == targets).all()


def test_grey_and_grids(tmp_path) -> None:
    colours = torch.eye(3).view(3, 3, 1, 1)
    assert grey(colours).flatten().tolist() == pytest.approx([0.299, 0.587, 0.114])
    assert torch.equal(grey(GREYS), GREYS)
    rows = [torch.rand(3, 3, 16, 20), torch.rand(3, 1, 16, 20)]
    data = png(rows)
    assert data == png([row.clone() for row in rows])
    pixels = np.asarray(Image.open(io.BytesIO(data)))
    assert CELL // 20 == 2
    assert pixels.shape == (2 * (32 + GAP) + GAP, 3 * (40 + GAP) + GAP, 3)
    top, left = GAP + 34, GAP + 42  # second row, second image
    shown = pixels[top : top + 32 : 2, left : left + 40 : 2]
    assert np.array_equal(shown[..., 0], np.rint(rows[1][1, 0].numpy() * 255))
    assert np.array_equal(shown[..., 0], shown[..., 2])
    assert (pixels[:GAP] == 255).all()
    assert np.asarray(Image.open(io.BytesIO(png([torch.rand(1, 1, 100, 90)])))).shape == (100 + 2 * GAP, 90 + 2 * GAP)
    for wrong in ([], [rows[0], rows[1][:2]], [torch.rand(1, 2, 4, 4)]):
        with pytest.raises(ValueError, match="a grid"):
            png(wrong)


def test_what_the_pictures_broke_counts_and_contradicts_a_certificate() -> None:
    table = pa.table(
        {
            "image": [0, 1, 2], "clean_margin": [1.0, 1.0, 1.0], "certified_l2": [0.0, 0.0, 1.0],
            "probed Linf 0.15": [True, False, False], "pictured Linf 0.15": [False, True, False],
        }
    )  # fmt: skip
    assert evidence.probed(table)["Linf", 0.15].tolist() == [True, True, False]
    linf = evidence.robust(table, tracks.load("digits"))[0]
    assert (linf.threat.label, linf.accuracy.count) == ("Linf 0.15", 1)
    evidence.check_sandwich(table, "row")
    lies = table.append_column("pictured L2 0.5", pa.array([False, False, True]))
    with pytest.raises(BenchmarkError, match=r"image 2 "):
        evidence.check_sandwich(lies, "row")


def test_the_stage_draws_the_same_bytes_and_the_record_names_them(linear_row) -> None:
    with pytest.raises(BenchmarkError, match="declares no pictures"):
        run_stage("pictures", *NAMES)
    (linear_row.root / "benchmark/tracks/tiny.yaml").write_text(tiny_linear_row.TRACK + PICTURES)
    run_stage("pictures", *NAMES)
    first = {path.name: path.read_bytes() for path in (ROW / "pictures").iterdir()}
    run_stage("pictures", *NAMES)
    assert {path.name: path.read_bytes() for path in (ROW / "pictures").iterdir()} == first
    assert {"perturbations.png", "accumulated_1.png", "pictures.json", "pictures.parquet"} < first.keys()
    run_stage("collect", *NAMES)
    named = tiny_linear_row.record().pictures
    assert [picture.file for picture in named] == ["perturbations.png", "accumulated_1.png"]
    for picture in named:
        kept = (ROW / "record/pictures" / picture.file).read_bytes()
        assert hashlib.sha256(kept).hexdigest() == picture.sha256
    assert "PGD of 5 steps" in named[0].caption
    stages = json.loads(generate.generate()[generate.row_file("tiny", "Tiny2026Linear-small")])["stages"]
    assert str(ROW / "pictures") in stages["collect"]["deps"]
    assert {"benchmark/tracks/tiny.yaml": ["evaluation", "pictures"]} in stages["pictures"]["params"]


def test_the_page_shows_them_with_alt_texts(tmp_path) -> None:
    import pyarrow.parquet as pq
    from safetensors.numpy import save

    made = record("Shown", 40, 30).model_dump()
    words = {"title": "T", "alt": 'Rows of "images"', "caption": "<b>"}
    made["pictures"] = [{"file": "perturbations.png", "sha256": "0", **words}]
    shown = Record.model_validate(made)
    folder = tmp_path / shown.row / "record"
    (folder / "pictures").mkdir(parents=True)
    (folder / "pictures/perturbations.png").write_bytes(png([GREYS]))
    (folder / "record.json").write_text(shown.model_dump_json())
    seen = pa.table({"image": [0], "label": [3], "clean_prediction": [3], "clean_margin": [0.5]})
    pq.write_table(seen, folder / "evidence.parquet")
    (folder / "images.safetensors").write_bytes(save({"clean": np.zeros((1, 1, 8, 8), np.float32)}))
    track = tracks.load("digits")
    build.render(tmp_path / "site", track, rank([shown], track), tmp_path)
    page = tmp_path / "site/models/Shown-v"
    assert (page / "pictures/perturbations.png").read_bytes() == png([GREYS])
    text = (page / "index.html").read_text()
    assert '<img src="pictures/perturbations.png" alt="Rows of &#34;images&#34;">' in text
    assert "&lt;b&gt;</figcaption>" in text


def test_rules_that_make_no_sense() -> None:
    for wrong in (
        {"eps": 8},
        {"eps": 0.1, "images": 0},
        {"eps": 0.1, "radii": [1, 2, 3, 4, 5]},
        {"eps": 0.1, "radii": [1, 1]},
        {"eps": 0.1, "radii": [0]},
    ):
        with pytest.raises(ValidationError):
            PicturesSpec.model_validate(wrong)
