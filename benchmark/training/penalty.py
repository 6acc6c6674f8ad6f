"""What the loop needs of a penalty: a term that is added to the loss of any objective."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor, nn

from benchmark.runtime.errors import BenchmarkError

if TYPE_CHECKING:  # so that training without penalties does not depend on it
    from benchmark.layers.attention_weights import AttentionWeights

Attention = Callable[[], "list[AttentionWeights]"]  # the model's attention layers, of its weights as they are now


class Penalty(nn.Module):
    """A scalar of the model's weights, added once to the loss of each optimiser step, whatever the batches it gathers.

    Its state lies in buffers, which the checkpoint keeps; the model is no submodule of it. `forward` only reads that state,
    so that both gradients of a SAM step have the same penalty. The loop calls `advance` before each optimiser step. It
    runs outside autocast.
    """

    def forward(self) -> Tensor:
        """() float32, differentiable in the weights."""
        raise NotImplementedError

    def advance(self) -> None:
        """Moves the state, such as the vectors of a power iteration, by one step."""


def checked_lambda(name: str, value: float) -> float:
    """A penalty's factor.

    Raises:
        BenchmarkError: it is negative or not finite, or no number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise BenchmarkError(f"{name} {value} should be a number of at least 0; 1e-3 is the top of SpecFormer's range")
    return float(value)
