"""The images of a row as tensors."""

from __future__ import annotations

import numpy as np
import torch

from benchmark.data.images import Images, evaluation_index, evaluation_split, load_split
from benchmark.runtime.torch_setup import start
from benchmark.specs.rows import Row

Split = tuple[torch.Tensor, torch.Tensor]


def tensors(images: Images) -> Split:
    return torch.from_numpy(images.floats()), torch.from_numpy(images.labels)


def evaluation_images(row: Row, device: torch.device) -> Split:
    """The test images that every model of this track is judged on."""
    start(device)
    images, labels = tensors(evaluation_split(row.data, row.track.evaluation))
    return images.to(device), labels.to(device)


def unseen_images(row: Row, device: torch.device) -> Split:
    """Test images that no model of this track is judged on, as many as those at most; in the order of the test split."""
    test, rules = load_split(row.data, "test"), row.track.evaluation
    judged = evaluation_index(len(test), rules.images, rules.seed)
    images, labels = tensors(test.take(np.setdiff1d(np.arange(len(test)), judged)[: rules.images]))
    return images.to(device), labels.to(device)
