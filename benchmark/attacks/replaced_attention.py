"""A network whose attention is replaced: every query averages all values, or gets 0. The accuracy that is left shows what
attention contributes. Patterns replaced by their mean over images, or by another image's, show whether content matters.

Attention is any softmax that torch computes over an axis of a tensor with three axes or more, including scaled dot-product
attention. XCiT's attention over channels counts, a softmax over classes (two axes) does not. A softmax written by hand, as
exp over a sum, is not found. Where a mask is -infinity, uniform weights are 0; a finite mask, as Swin's -100, is ignored.
The layers of layers/competitive_attention.py report their patterns. Only these can be replaced by other patterns.
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
from benchmark.layers.competitive_attention import watching
from benchmark.runtime.errors import BenchmarkError

Weights = Literal["uniform", "none"]  # equal for all that a query may attend to; or 0
SOFTMAX = (torch.ops.aten._softmax.default, torch.ops.aten._safe_softmax.default)


@runtime_checkable
class Remote(Protocol):
    """A stand-in for a model in another process."""

    def logits_with(self, images: torch.Tensor, weights: Weights) -> tuple[torch.Tensor, int]: ...


class ReplacedAttention(nn.Module):
    """The model with other attention weights: images (n, c, h, w) to logits (n, classes).

    An image's logits are all 0 if one is not finite, since such weights may lead to a division by 0. `replaced` counts the
    replaced attention. For a model in another process, logits and count are that process's claims: they are reported, and
    never decide whether an image counts as correct.
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
    """Return the changed model's classes (n,) of images (n, c, h, w); None if it has no attention.

    A class is -1 where the two largest logits tie or logits are not finite.
    """
    changed = ReplacedAttention(model, weights)
    predicted = _classes(logits(changed, images, batch_size))
    return predicted if changed.replaced else None


def _classes(logits: torch.Tensor) -> torch.Tensor:
    first, second = logits.topk(2, dim=1).values.T
    return torch.where(first > second, logits.argmax(1), -1)


@torch.no_grad()
def patterns(model: nn.Module, images: torch.Tensor) -> list[torch.Tensor]:
    """Return the attention patterns (n, ...) that layers report in one forward pass; none for a model in another process."""
    seen: list[torch.Tensor] = []
    if not isinstance(model, Remote):
        with watching(lambda pattern, _: seen.append(pattern)):
            model(images)
    return seen


def mean_patterns(model: nn.Module, images: torch.Tensor, batch_size: int) -> list[torch.Tensor]:
    """Return the mean over images (n, c, h, w) of each pattern that a layer reports: (1, ...) float64, in order."""
    batches = [patterns(model, part) for part in images.split(batch_size)]
    return [
        sum(part.double().sum(0, keepdim=True) for part in layer) / len(images) for layer in zip(*batches, strict=True)
    ]


class OtherPatterns(nn.Module):
    """The model with other patterns in place of those that its layers report: images (n, c, h, w) to logits (n, classes).

    Args:
        means: the patterns that all images get, by layer; None gives each image those of the one before it in the batch, as
            an unchanged pass has them, and the first one those of the last.
    """

    def __init__(self, model: nn.Module, means: list[torch.Tensor] | None) -> None:
        super().__init__()
        self.model, self.means = model, means

    @torch.no_grad()
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        given = iter(self.means or [pattern.roll(1, 0) for pattern in patterns(self.model, images)])

        def replacement(pattern: torch.Tensor, _: float) -> torch.Tensor:
            if (other := next(given, None)) is None:
                raise BenchmarkError("the model reports more patterns in its second pass than in its first")
            return other.to(pattern.dtype).expand_as(pattern)

        with watching(replacement):
            logits = checked(self.model(images), len(images))
        return torch.where(torch.isfinite(logits).all(1, keepdim=True), logits, 0)


def predictions_with_patterns(
    means: list[torch.Tensor] | None, model: nn.Module, images: torch.Tensor, batch_size: int
) -> torch.Tensor:
    """Return the classes (n,) with `OtherPatterns`: -1 where the two largest logits tie or logits are not finite."""
    return _classes(logits(OtherPatterns(model, means), images, batch_size))


@contextmanager
def replaced_attention(weights: Weights) -> Iterator[_Replaced]:
    """Give every attention these weights inside the context."""
    fast = torch.backends.mha.get_fastpath_enabled()  # it computes a layer in one call, without a visible softmax
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), _Replaced(weights) as mode, watching(mode.of_pattern):
            yield mode
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


class _Replaced(TorchDispatchMode):
    def __init__(self, weights: Weights) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.weights, self.replaced = weights, 0

    def of_pattern(self, pattern: torch.Tensor, uniform: float) -> torch.Tensor:
        """Return the replacement of a pattern that a layer reports, and count it."""
        self.replaced += 1
        return torch.full_like(pattern, uniform if self.weights == "uniform" else 0.0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in SOFTMAX or result.ndim < 3:
            return result
        self.replaced += 1
        if self.weights == "none":
            return torch.zeros_like(result)
        unmasked = args[0] != -torch.inf
        return (unmasked / unmasked.sum(args[1], keepdim=True).clamp(min=1)).to(result.dtype)
