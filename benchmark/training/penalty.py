"""What the loop needs of a penalty: a term that is added to the loss of any objective."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor, nn

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


def unit(vectors: Tensor) -> Tensor:
    """Each of (..., size) over its l2 norm; 0 where it is 0."""
    return nn.functional.normalize(vectors, dim=-1)
