"""Predictions of the float32 model in fixed batches, so that a replay of the images computes the same logits.

A prediction is correct when the true logit is above every other; a tie counts as wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.memory import halved

# torch's CPU libraries multiply 1 to 3 rows (measured) by another kernel, with other rounding, than any larger number.
MIN_ROWS = 8


@dataclass(frozen=True)
class Predictions:
    """Predictions of the float32 model for n images, each (n,)."""

    prediction: torch.Tensor
    margin: torch.Tensor  # true logit less the largest other; correct when above 0

    @property
    def correct(self) -> torch.Tensor:
        return self.margin > 0


def margins(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the true logit less the largest other: logits (n, classes) and labels (n,) to (n,)."""
    true = logits.gather(1, labels[:, None])
    others = logits.scatter(1, labels[:, None], float("-inf"))
    return (true - others.amax(1, keepdim=True))[:, 0]


def predict(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, batch_size: int) -> Predictions:
    """Return predictions and margins of images (n, c, h, w) with labels (n,); arguments and errors are those of `logits`."""
    output = logits(model, images, batch_size)
    return Predictions(output.argmax(1), margins(output, labels))


def batched(
    compute: Callable[[slice], torch.Tensor], count: int, batch_size: int, least: int = MIN_ROWS
) -> list[torch.Tensor]:
    """Apply `compute` to `batch_size` of `count` rows at a time, or to fewer where memory does not suffice."""
    starts = range(0, max(count, 1), batch_size)
    return [halved(compute, slice(first, min(first + batch_size, count)), least) for first in starts]


def padded(images: torch.Tensor) -> torch.Tensor:
    """Copy a batch (m, c, h, w), since models may write to it, and repeat it to MIN_ROWS rows, lest rounding depend on m."""
    return images.repeat(-(-MIN_ROWS // max(len(images), 1)) if len(images) < MIN_ROWS else 1, 1, 1, 1)


def checked(output: object, count: int) -> torch.Tensor:
    """Return a model's output for `count` images; raise a BenchmarkError unless it is logits (count, classes)."""
    if isinstance(output, torch.Tensor) and output.ndim == 2 and len(output) == count:
        return output
    gives = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
    raise BenchmarkError(
        f"the model gives {gives} for {count} images; logits of shape ({count}, classes) are needed, whatever their number"
    )


@torch.no_grad()
def logits(model: nn.Module, images: torch.Tensor, batch_size: int) -> torch.Tensor:
    """Return the logits (n, classes) float32 of images (n, c, h, w), computed `batch_size` at a time (see `batched`).

    Raises:
        BenchmarkError: the model returns another shape, or a logit that is not finite.
    """

    def asked(rows: slice) -> torch.Tensor:
        given = padded(images[rows])
        return checked(model(given), len(given))[: rows.stop - rows.start].float()

    parts = batched(asked, len(images), batch_size)
    classes = [part.shape[1] for part in parts]
    if other := {*classes} - {classes[0]}:
        raise BenchmarkError(f"the model gives {classes[0]} logits an image in one batch and {min(other)} in another")
    result = torch.cat(parts)
    if not torch.isfinite(result).all():
        image = int((~torch.isfinite(result)).any(1).nonzero()[0])
        raise BenchmarkError(f"the model's logits are not finite (NaN or infinity) for evaluation image {image}")
    return result
