"""What the float32 model says of images, in fixed batches: what anyone who replays them computes.

An image is right when its true logit is above every other; a tie counts as wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from benchmark.runtime.errors import BenchmarkError
from benchmark.verdicts.margins import margins

# torch's CPU libraries multiply very few rows (1 to 3, measured) by another kernel than more, which agree to the bit.
MIN_ROWS = 8


@dataclass(frozen=True)
class Judged:
    """The float32 model on a set of images, in fixed batches: each (n,)."""

    prediction: torch.Tensor
    margin: torch.Tensor  # true logit less the largest other; right when above 0

    @property
    def right(self) -> torch.Tensor:
        return self.margin > 0


def judge(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, batch_size: int) -> Judged:
    """Predictions and margins; a BenchmarkError when a logit is not finite."""
    output = logits(model, images, batch_size)
    return Judged(output.argmax(1), margins(output, labels))


def padded(images: torch.Tensor) -> torch.Tensor:
    """A copy of (m, c, h, w), since a model may change its input; of few images several, so that rounding does not tell m."""
    return images.repeat(-(-MIN_ROWS // max(len(images), 1)) if len(images) < MIN_ROWS else 1, 1, 1, 1)


@torch.no_grad()
def logits(model: nn.Module, images: torch.Tensor, batch_size: int) -> torch.Tensor:
    """Logits (n, classes) in float32, in fixed batches: what anyone who replays the images computes.

    Raises:
        BenchmarkError: the model returns something that is not finite.
    """
    result = torch.cat([model(padded(batch))[: len(batch)].float() for batch in images.split(batch_size)])
    if not torch.isfinite(result).all():
        image = int((~torch.isfinite(result)).any(1).nonzero()[0])
        raise BenchmarkError(f"the model's logits are not finite (NaN or infinity) for evaluation image {image}")
    return result
