"""The interface of penalties: terms that are added to the loss of any objective."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:  # training without penalties must not depend on it
    from benchmark.layers.attention_weights import AttentionWeights

Attention = Callable[[], "list[AttentionWeights]"]  # the model's attention layers with their current weights


class Penalty(nn.Module):
    """A scalar of the model's weights, added once to the loss of each optimiser step, however many batches it gathers.

    Its state lies in buffers, which the checkpoint keeps; the model is no submodule of it. `forward` only reads the state,
    so that both gradients of a SAM step have the same penalty. It runs outside autocast.
    """

    def forward(self) -> Tensor:
        """Return the penalty, () float32, differentiable in the weights."""
        raise NotImplementedError

    def advance(self) -> None:
        """Move the state, such as vectors of a power iteration, by one step; called before each optimiser step."""


def unit(vectors: Tensor) -> Tensor:
    """Divide each of (..., size) by its l2 norm; 0 stays 0."""
    return nn.functional.normalize(vectors, dim=-1)
