"""The images of a row as tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from benchmark.data.images import Images, evaluation_index, evaluation_split, load_split
from benchmark.runtime.torch_setup import start
from benchmark.specs.rows import Row

Split = tuple[torch.Tensor, torch.Tensor]  # images (n, c, h, w) float32 in [0, 1], labels (n,) int64


def tensors(images: Images) -> Split:
    """Return images and labels on the CPU."""
    return torch.from_numpy(images.floats()), torch.from_numpy(images.labels)


def evaluation_images(row: Row, device: torch.device) -> Split:
    """Return the test images on which every model of the row's track is evaluated."""
    start(device)
    images, labels = tensors(evaluation_split(row.data, row.track.evaluation))
    return images.to(device), labels.to(device)


def training_images(data: Path, count: int) -> torch.Tensor:
    """Return the first training images (n, c, h, w) of a track's data, `count` at most."""
    split = load_split(data, "train")
    return tensors(split.take(np.arange(min(count, len(split)))))[0]


def unseen_images(row: Row, device: torch.device) -> Split:
    """Return test images outside the evaluation set, at most as many as it has, in the order of the test split."""
    test, rules = load_split(row.data, "test"), row.track.evaluation
    evaluated = evaluation_index(len(test), rules.images, rules.seed)
    images, labels = tensors(test.take(np.setdiff1d(np.arange(len(test)), evaluated)[: rules.images]))
    return images.to(device), labels.to(device)
