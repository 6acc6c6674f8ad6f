"""What changes with the epoch, in closed forms of it, so that resuming needs no state."""

from __future__ import annotations

import math

from benchmark.specs.training import TrainingSpec


def lr_factor(spec: TrainingSpec, place: float) -> float:
    """The factor of the learning rate after `place` epochs.

    `one_cycle` rises from 4% over the first 30% of training and falls along a cosine to 0. `cosine` and `constant` rise from
    1% over `rate_warmup_epochs`; the cosine then falls to `final_rate`.
    """
    if spec.schedule == "one_cycle":
        return _one_cycle(place / spec.epochs)
    if place < spec.rate_warmup_epochs:
        return 0.01 + 0.99 * place / spec.rate_warmup_epochs
    if spec.schedule == "constant":
        return 1.0
    done = (place - spec.rate_warmup_epochs) / (spec.epochs - spec.rate_warmup_epochs)
    return spec.final_rate + (1 - spec.final_rate) * 0.5 * (1 + math.cos(math.pi * done))


def _one_cycle(done: float) -> float:
    if done < 0.3:
        return 0.04 + 0.96 * done / 0.3
    return 0.5 * (1 + math.cos(math.pi * (done - 0.3) / 0.7))


def eps_factor(spec: TrainingSpec, epoch: int) -> float:
    """The factor of the radius trained for in this epoch: 0 in the first, 1 after `warmup_epochs`, linear between."""
    return min(1.0, epoch / spec.warmup_epochs) if spec.warmup_epochs else 1.0


def closes(spec: TrainingSpec, epoch: int) -> bool:
    """Whether this is one of the last epochs, which are augmented as `closing` says."""
    return spec.closing is not None and epoch >= spec.epochs - spec.closing.epochs
