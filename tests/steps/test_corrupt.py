"""Corrupted images from the stage to the board: resumed, counted from the evidence, shown; not ranked."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from scipy.stats import binomtest
from stages import planned_code, really_imported, resumable
from tiny_project import ROOT, Project
from tiny_record import record
from tiny_sources import encode, textures
from torch import nn

from benchmark.data.corruptions import corrupt
from benchmark.evaluation.evidence import corrupted, mean_proportion
from benchmark.records.record import Record
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import tracks
from benchmark.specs.base import to_json
from benchmark.specs.track import CorruptionSpec
from leaderboard import build
from leaderboard.rank import columns, label, rank

RULES = CorruptionSpec(names=("fog", "contrast"), severities=(1, 5))
COUNTS = {"corrupted fog 1": 3, "corrupted fog 5": 1, "corrupted contrast 1": 2, "corrupted contrast 5": 0}
TABLE = pa.table({name: [image < count for image in range(4)] for name, count in COUNTS.items()})


def test_accuracies_are_counted_from_the_evidence_and_a_verdict_that_is_missing_stops() -> None:
    found = corrupted(TABLE, RULES, "P.", {"library": "1"})
    assert [[cell.count for cell in row.severities] for row in found.corruptions] == [[3, 1], [2, 0]]
    assert [row.mean.value for row in found.corruptions] == [4 / 8, 2 / 8]
    assert [mean.value for mean in found.severities] == [5 / 8, 1 / 8]
    assert (found.accuracy.count, found.accuracy.n, found.accuracy.value) == (6, 16, 6 / 16)
    assert (found.rules, found.parameters, found.versions) == (RULES, "P.", {"library": "1"})
    content = record("A", 1, 1).model_copy(update={"corrupted": found})
    assert Record.model_validate_json(to_json(content)) == content
    missing = TABLE.drop_columns(["corrupted fog 5"])
    for table in (missing, missing.append_column("corrupted fog 5", pa.array([True, None, False, False]))):
        with pytest.raises(BenchmarkError, match="'corrupted fog 5' is missing or lacks an image"):
            corrupted(table, RULES, "P.", {})


def test_the_interval_of_a_mean_is_wilsons_for_the_images_not_for_their_copies() -> None:
    for count, n in ((0, 20), (7, 20), (30, 30), (50, 100), (100, 100)):
        right = np.tile(np.arange(n) < count, (9, 1))  # every copy fares as its image does: n independent verdicts
        found, wilson = mean_proportion(right), binomtest(count, n).proportion_ci(method="wilson")
        assert (found.low, found.high) == pytest.approx((wilson.low, wilson.high), abs=1e-9)
        assert found.low <= found.value <= found.high


def test_means_are_covered_when_copies_are_alike_and_when_they_are_not() -> None:
    rng = np.random.default_rng(0)
    for spread in (0.02, 0.3, 100.0):  # of an image's own chance: all or nothing, mixed, the same for all images
        chance = rng.beta(0.6 * spread, 0.4 * spread, (2000, 1, 50))
        found = [mean_proportion(right) for right in rng.random((2000, 6, 50)) < chance]
        covered = sum(mean.low <= 0.6 <= mean.high for mean in found)
        assert binomtest(covered, 2000, 0.95, alternative="less").pvalue > 1e-3


def test_corrupted_numbers_have_a_column_of_their_own_and_do_not_rank() -> None:
    track = tracks.load("digits").model_copy(update={"corruptions": RULES})
    assert columns(track)[-1] == "corrupted"
    assert columns(tracks.load("digits"))[-1] != "corrupted"
    assert label("corrupted") == "corrupted (ImageNet-C strengths)"
    tables = {"A": TABLE, "B": pa.table({name: [True] * 4 for name in COUNTS})}
    found = {name: corrupted(table, RULES, "P.", {}) for name, table in tables.items()}
    rows = rank([record(name, 40, 10).model_copy(update={"corrupted": found.get(name)}) for name in "ABC"], track)
    assert [(row.rank, row.record.submission) for row in rows] == [("1–3", "A"), ("1–3", "B"), ("1–3", "C")]
    assert [row.cells[-1] and row.cells[-1].count for row in rows] == [6, 16, None]
    assert build.metrics(rows)["A-v"]["corrupted"] == 0.375
    assert build.table(rows, track).splitlines()[1].endswith(",0.375")


class Brightness(nn.Module):
    """Class 1 where the mean pixel is above a half, else 0; counts the images shown, and stops after `most`."""

    def __init__(self, most: float = float("inf")) -> None:
        super().__init__()
        self.most, self.shown = most, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.shown += len(x)
        if self.shown > self.most:
            raise KeyboardInterrupt
        side = x.flatten(1).mean(1) - 0.5
        return torch.stack((-side, side), 1)


def test_the_stage_resumes_where_it_was_killed(tmp_path, monkeypatch) -> None:
    from benchmark.steps import corrupt as stage

    monkeypatch.setattr(stage, "BLOCK", 8)
    images = torch.from_numpy(textures(24))
    labels = (images.flatten(1).mean(1) > 0.5).long()
    rules = CorruptionSpec(names=("gaussian_noise", "snow"), severities=(1, 3))
    run = resumable(stage.corrupted_columns, "corrupt", images, labels, rules, tmp_path)
    whole = run(Brightness(), "whole")
    assert list(whole) == [f"corrupted {name} {severity}" for name, severity in rules.cells]
    assert all(column.dtype == torch.bool and len(column) == 24 for column in whole.values())
    copies = torch.from_numpy(corrupt(images.numpy(), range(24), "snow", 3, 0))
    assert torch.equal(whole["corrupted snow 3"], (copies.flatten(1).mean(1) > 0.5) == labels.bool())
    assert 0 < whole["corrupted snow 3"].sum() < 24
    with pytest.raises(KeyboardInterrupt):
        run(Brightness(40), "killed")
    again = Brightness()
    found = run(again, "killed")
    assert sorted(found) == sorted(whole)
    assert all(torch.equal(found[name], whole[name]) for name in whole)
    assert again.shown == 16 * len(rules.cells)  # the first eight images were done


TRACK = """\
version: 1
title: Tiny colour images
description: A few colour images, for tests.
data: {source: parquet, path: colours, seed: 0, validation: 10, shape: [3, 32, 32], classes: 2}
evaluation: {images: 30, seed: 0, batch_size: 8}
suites:
  standard:
    - {attack: fgsm, norm: Linf, eps: 0.03}
certified_radii: []
corruptions: {names: [gaussian_noise, fog, jpeg_compression], severities: [1, 5], seed: 0}
"""

SUBMISSION = """\
name: Tiny2026Colour
summary: A tiny network for tests.
paper: {title: None, authors: Nobody, year: 2026}
variants:
  small:
    title: Tiny colours
    tracks:
      colours:
        model: {patch_size: 8, width: 16, depth: 1, heads: 2}
        training: {objective: standard, epochs: 12, batch_size: 16, learning_rate: 0.01}
"""


@pytest.fixture
def colours(project: Project) -> Project:
    """A project with a small track of random textures, reddish or bluish, that asks for corruptions, run to the end."""
    (project.root / "colours").mkdir()
    pixels, labels = np.rint(textures(90) * 200).astype(np.uint8), np.arange(90) % 2
    pixels[np.arange(90), 2 * labels] += 12
    for name, part in (("train", slice(0, 60)), ("test", slice(60, 90))):
        table = pa.table({"img": [encode(image) for image in pixels[part]], "label": labels[part]})
        pq.write_table(table, project.root / f"colours/{name}.parquet")  # in the Hugging Face layout
    (project.root / "benchmark/tracks/colours.yaml").write_text(TRACK)
    folder = project.root / "submissions/Tiny2026Colour"
    folder.mkdir()
    (folder / "submission.yaml").write_text(SUBMISSION)
    shutil.copy(ROOT / "submissions/Wong2020Fast/method.py", folder)
    project.rvb("repro", "--track", "colours")
    return project


@pytest.mark.slow
@pytest.mark.long
def test_a_colour_track_from_images_to_the_site(colours) -> None:
    """The column in record, CSV, JSON, `rvb show` and site says what a recount of the evidence says; and what reruns."""
    row = "Tiny2026Colour-small"
    folder = colours.root / "work/colours" / row
    found = Record.model_validate_json((folder / "record/record.json").read_text()).corrupted
    table = pq.read_table(folder / "record/evidence.parquet")
    cells = [table[f"corrupted {name} {severity}"].to_numpy() for name, severity in found.rules.cells]
    assert (found.accuracy.count, found.accuracy.n) == (sum(cell.sum() for cell in cells), 6 * 30)
    assert 0.3 < found.accuracy.value < 1
    assert set(found.versions) >= {"imagecorruptions-imaug", "opencv"}
    board = colours.root / "work/colours"
    numbers = colours.root / "pipelines/colours"
    assert json.loads((numbers / "leaderboard.json").read_text())[row]["corrupted"] == found.accuracy.value
    head, line = (numbers / "leaderboard.csv").read_text().splitlines()
    assert (head.split(",")[-1], float(line.split(",")[-1])) == ("corrupted", found.accuracy.value)
    shown = colours.rvb("show", row, "--track", "colours").stdout
    assert re.search(rf"corrupted.* {100 * found.accuracy.value:.1f} .*{found.accuracy.count} of 180", shown), shown
    index, page = (board / "site/index.html").read_text(), (board / f"site/models/{row}/index.html").read_text()
    assert "<dt>corrupted</dt>" in index
    assert "do not compare them with published CIFAR-10-C numbers" in index
    every = [cell for kind in found.corruptions for cell in kind.severities]
    for number in (found.accuracy, *found.severities, *every):
        value, low, high = (f"{100 * share:.1f}" for share in (number.value, number.low, number.high))
        assert f'<td class="share"><b>{value}</b><small>{low}–{high}</small>' in page
    words = ("corrupted (ImageNet-C strengths)", "jpeg compression", "cannot be compared with numbers on CIFAR-10-C")
    assert [text for text in words if text not in page] == []
    assert "corrupted fog 5" in (board / f"site/models/{row}/evidence.csv").read_text().splitlines()[0]
    colours.rvb("pipeline", "--check")
    before = (folder / "corrupt/evidence.parquet").read_bytes()
    assert really_imported(colours, "corrupt", "colours", row) == planned_code(colours, row, "corrupt")
    assert (folder / "corrupt/evidence.parquet").read_bytes() == before  # run again from scratch, the same bytes
    rules = colours.root / "benchmark/tracks/colours.yaml"
    rules.write_text(TRACK.replace("severities: [1, 5]", "severities: [1]"))
    output = colours.run("dvc", "repro", "pipelines/colours/dvc.yaml").stdout
    ran = {stage.rpartition(":")[2] for stage in re.findall(r"Running stage '([^']+)'", output)}
    assert ran == {"inputs", "evaluate", "leaderboard"}
    assert re.findall(r"(\S+) is kept", output) == ["attack-standard", "reliability", "attention"]
