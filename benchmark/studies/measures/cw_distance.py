"""Measure `cw_distance`: the l2 distance at which Carlini and Wagner's attack (2017) breaks each image."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from benchmark.attacks import cw
from benchmark.attacks.prediction import predict
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import ThreatModel

BATCH = 256


def measure(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    seed: int,
    steps: int,
    step_size: float,
    c: float,
    radii: Sequence[float],
    confidence: float = 0.0,
) -> dict[str, object]:
    """Search the nearest misclassified image, without a radius. The model's answer on each result is computed again.

    The attack moves pixels through a tanh, which is flat at 0 and 1, so black or white pixels hardly move in some hundred
    steps. On images with many of them it is a weak attack. Its distances bound nothing.

    Args:
        images: (n, c, h, w) in [0, 1]; labels: (n,).
        steps, step_size, c, confidence: as of the attack `cw`.
        radii: l2, in pixels of [0, 1], increasing.

    Returns:
        `broken`: the share of the rightly classified images that were broken at any distance. `mean l2`, `median l2`: their
        distance. `accuracy within`: over `radii`, the share of all images that are right when clean and not broken within the
        radius, in float64. `l2`: each image's distance, 0 where it is wrong when clean, NaN where it was not broken.

    Raises:
        BenchmarkError: nothing was broken, so that no distance is known.
    """
    right = predict(model, images, labels, BATCH).correct
    everywhere = ThreatModel(norm="L2", eps=math.sqrt(images[0].numel()))
    batches = [
        cw.attack(model, x, y, everywhere, seed=seed, steps=steps, step_size=step_size, c=c, confidence=confidence)
        for x, y in zip(images.split(BATCH), labels.split(BATCH), strict=True)
    ]
    moved = torch.cat(batches)
    broken = right & ~predict(model, moved, labels, BATCH).correct
    if not broken.any():
        raise BenchmarkError("cw_distance: no image was broken, so no distance is known; give more steps or a larger c")
    distances = (moved.double() - images.double()).flatten(1).norm(dim=1)
    of_broken = distances[broken]
    return {
        "x": list(radii),
        "broken": int(broken.sum()) / int(right.sum()),
        "mean l2": float(of_broken.mean()),
        "median l2": float(of_broken.median()),
        "accuracy within": [int((right & ~(broken & (distances <= r))).sum()) / len(labels) for r in radii],
        "l2": torch.where(right, torch.where(broken, distances, torch.nan), 0.0),
    }
