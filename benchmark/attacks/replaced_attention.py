"""A network whose attention is replaced: every query averages all values alike, or gets nothing. What is left of its accuracy
then says what attention does in it.

Attention is found where torch computes it: each softmax over an axis of a tensor with three axes or more, torch's own scaled
dot-product attention among them, whichever code calls it. So XCiT's attention over channels counts, a softmax over classes
(two axes) does not, and a softmax written out by hand, as exp over a sum, is not found. Where a mask puts -infinity, uniform
weights are 0; one of finite numbers, as Swin's -100, is averaged over.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from benchmark.attacks.prediction import checked, logits

Weights = Literal["uniform", "none"]  # the same for all that a query may attend to; or 0 for all
SOFTMAX = (torch.ops.aten._softmax.default, torch.ops.aten._safe_softmax.default)


@runtime_checkable
class Remote(Protocol):
    """A model that stands for one in another process."""

    def logits_with(self, images: torch.Tensor, weights: Weights) -> tuple[torch.Tensor, int]: ...


class ReplacedAttention(nn.Module):
    """The model with other attention weights: images (n, c, h, w) to logits (n, classes), all 0 where one is not finite: what
    was never trained so may divide by 0. `replaced` counts the attention that passes found so far.

    Of a model in another process, logits and count are that process's words: they decide what is said of a row, never whether
    an image counts as right.
    """

    def __init__(self, model: nn.Module, weights: Weights) -> None:
        super().__init__()
        self.model, self.weights, self.replaced = model, weights, 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if isinstance(self.model, Remote):
            logits, replaced = self.model.logits_with(images, self.weights)
            self.replaced += replaced
        else:
            with replaced_attention(self.weights) as mode:
                logits = checked(self.model(images), len(images))
            self.replaced += mode.replaced
        return torch.where(torch.isfinite(logits).all(1, keepdim=True), logits, 0)


def predictions_with(weights: Weights, model: nn.Module, images: torch.Tensor, batch_size: int) -> torch.Tensor | None:
    """Return the changed model's classes (n,) of images (n, c, h, w): -1 where the two first tie or logits are not
    finite; None where no attention was found.
    """
    changed = ReplacedAttention(model, weights)
    first, second = (found := logits(changed, images, batch_size)).topk(2, dim=1).values.T
    return torch.where(first > second, found.argmax(1), -1) if changed.replaced else None


@contextmanager
def replaced_attention(weights: Weights) -> Iterator[_Replaced]:
    """Within the block every attention has these weights."""
    fast = torch.backends.mha.get_fastpath_enabled()  # one call for a whole layer, in which no softmax would be seen
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), _Replaced(weights) as mode:
            yield mode
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


class _Replaced(TorchDispatchMode):
    def __init__(self, weights: Weights) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.weights, self.replaced = weights, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func not in SOFTMAX or found.ndim < 3:
            return found
        self.replaced += 1
        if self.weights == "none":
            return torch.zeros_like(found)
        seen = args[0] != -torch.inf  # what a mask leaves
        return (seen / seen.sum(args[1], keepdim=True).clamp(min=1)).to(found.dtype)
