"""What stages leave on the disk, and what they need there while they run: from shapes, in bytes, rather too much."""

from __future__ import annotations

import math
from collections.abc import Mapping

from benchmark.loading.rows import Row
from benchmark.reliability.probes import RADII, STEPS
from benchmark.stages.catalogue import Planned, plan

FLOAT = 4  # bytes of a pixel as attacks leave it
COLUMN, CELL = 900, 8  # bytes of a column of evidence, and of a number in it
ABOUT = 4_000  # stage.json, fields.json and the times of a stage
RECORD = 40_000  # record.json of a row
LISTED = 100  # bytes of an image in per_image.json
MOMENTS = {"adamw": 2, "sgd": 1}  # numbers that the optimiser keeps of a weight
SHARED = 3  # columns of every evaluation: label, clean prediction, clean margin


def kept(one: Planned, weights: int) -> int:
    """What a stage leaves in work/; DVC's cache holds as much again where the file system cannot share it.

    Args:
        weights: bytes of model.safetensors.
    """
    row, kind = one.row, one.stage.name
    if kind in ("train", "pretrained"):
        epochs = row.settings.training.epochs if row.settings.training else 0
        return weights + ABOUT + 100 * epochs
    if kind == "collect":
        stages = [each for each in plan(row) if each.stage.name != "collect"]
        columns = SHARED + sum(_columns(row, each) for each in stages)
        images = row.track.evaluation.images
        adversarial = sum(_adversarial(row, each) for each in stages if each.settings.get("kept"))
        pictures = sum(_pictures(row) for each in stages if each.stage.name == "pictures")
        clean = images * FLOAT * math.prod(row.track.data.shape)
        return clean + adversarial + pictures + _table(columns, images) + LISTED * images + RECORD
    columns = SHARED + _columns(row, one)
    own = _adversarial(row, one) + (_pictures(row) if kind == "pictures" else 0)
    return own + _table(columns, row.track.evaluation.images) + ABOUT + 2_000 * _attacks(row, one)


def scratch(one: Planned, weights: int) -> int:
    """What it needs beside that while it runs: the checkpoint of a training, the state of each attack."""
    spec = one.row.settings.training
    if one.stage.name == "train" and spec:
        return weights * (2 + MOMENTS[spec.optimizer] + bool(spec.ema))
    return _adversarial(one.row, one)


def data(counts: Mapping[str, int], row: Row) -> int:
    """The splits of a track whose data are not prepared yet."""
    return sum(counts.values()) * (math.prod(row.track.data.shape) + CELL)


def _table(columns: int, images: int) -> int:
    return columns * (COLUMN + CELL * images)


def _attacks(row: Row, one: Planned) -> int:
    return len(row.suites[one.name.partition("-")[2]]) if one.stage.name == "attack" else 0


def _adversarial(row: Row, one: Planned) -> int:
    rules = row.track.evaluation
    return _attacks(row, one) * (rules.attacked or rules.images) * FLOAT * math.prod(row.track.data.shape)


def _pictures(row: Row) -> int:
    """PNGs of noise, which does not compress: three rows of images, and two for each radius; a frame around each image."""
    rules, (_, height, width) = row.track.pictures, row.track.data.shape
    assert rules is not None  # the stage applies
    return (3 + 2 * len(rules.radii)) * rules.images * 3 * (height + 4) * (width + 4) + ABOUT


def _columns(row: Row, one: Planned) -> int:
    """Of evidence, beside those that every evaluation has."""
    kind, corruptions = one.stage.name, row.track.corruptions
    found = {
        "attack": 5 * _attacks(row, one),
        "reliability": 6 + 2 * len(STEPS) + 2 * RADII + 2,
        "smooth": 6,
        "corrupt": len(corruptions.cells) if corruptions else 0,
        "attention": 2,
        "certify": 1,
        "pictures": 1,
    }
    return found.get(kind, 0)
