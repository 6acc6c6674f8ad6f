"""A network whose attention is replaced: every query averages all values, or gets 0. The accuracy that is left shows what
attention contributes. Patterns replaced by their mean over images, or by another image's, show whether content matters.

Attention is any softmax that torch computes over an axis of a tensor with three axes or more, including scaled dot-product
attention. XCiT's attention over channels counts, a softmax over classes (two axes) does not. A softmax written by hand, as
exp over a sum, is not found. Where a mask is -infinity, uniform weights are 0; a finite mask, as Swin's -100, is ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from benchmark.attacks.prediction import checked, logits
from benchmark.layers.competitive_attention import Uniform, Watcher, watching
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


def patterns(model: nn.Module, images: torch.Tensor) -> list[torch.Tensor]:
    """Return the attention patterns (n, parts, ...) of one forward pass, in order: `parts` are Swin's windows, or 1.

    There are none for a model in another process, or where attention mixes images: its first axis is no multiple of n.
    """
    seen: list[torch.Tensor] = []
    if not isinstance(model, Remote):
        with _patterns_seen_by(lambda pattern, _: seen.append(pattern)):
            model(images)
    if any(not len(pattern) or len(pattern) % len(images) for pattern in seen):
        return []
    return [pattern.unflatten(0, (len(images), -1)) for pattern in seen]


def mean_patterns(model: nn.Module, images: torch.Tensor, batch_size: int) -> list[torch.Tensor]:
    """Return the mean over images (n, c, h, w) of each of the `patterns`: (1, parts, ...) float64, in order."""
    sums = [[part.double().sum(0, keepdim=True) for part in patterns(model, x)] for x in images.split(batch_size)]
    return [sum(layer) / len(images) for layer in zip(*sums, strict=True)]


class OtherPatterns(nn.Module):
    """The model with other patterns in place of its own: images (n, c, h, w) to logits (n, classes).

    Args:
        means: the patterns that all images get, in order; None gives each image those of the one before it in the batch, as
            an unchanged pass has them, and the first one those of the last.
    """

    def __init__(self, model: nn.Module, means: list[torch.Tensor] | None) -> None:
        super().__init__()
        self.model, self.means = model, means

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        given = iter(self.means or [pattern.roll(1, 0) for pattern in patterns(self.model, images)])

        def replacement(pattern: torch.Tensor, _: Uniform) -> torch.Tensor:
            if (other := next(given, None)) is None:
                raise BenchmarkError("the model has more attention in its second pass than in its first")
            return other.to(pattern.dtype).expand(len(images), *other.shape[1:]).flatten(0, 1)

        with _patterns_seen_by(replacement):
            logits = checked(self.model(images), len(images))
        return torch.where(torch.isfinite(logits).all(1, keepdim=True), logits, 0)


def predictions_with_patterns(
    means: list[torch.Tensor] | None, model: nn.Module, images: torch.Tensor, batch_size: int
) -> torch.Tensor:
    """Return the classes (n,) with `OtherPatterns`: -1 where the two largest logits tie or logits are not finite."""
    return _classes(logits(OtherPatterns(model, means), images, batch_size))


@contextmanager
def replaced_attention(weights: Weights) -> Iterator[Replaced]:
    """Give every attention these weights inside the context."""
    with _patterns_seen_by(replaced := Replaced(weights)):
        yield replaced


@dataclass
class Replaced:
    """What replaces a pattern, and how often it did."""

    weights: Weights
    replaced: int = 0

    def __call__(self, pattern: torch.Tensor, uniform: Uniform) -> torch.Tensor:
        self.replaced += 1
        return torch.zeros_like(pattern) + (uniform() if self.weights == "uniform" else 0.0)


@contextmanager
def _patterns_seen_by(watcher: Watcher) -> Iterator[None]:
    """Show every pattern to `watcher` inside the context, and mix by what it returns if that is not None."""
    fast = torch.backends.mha.get_fastpath_enabled()  # it computes a layer in one call, without a visible softmax
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), _Softmaxes(watcher), watching(watcher):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


class _Softmaxes(TorchDispatchMode):
    def __init__(self, watcher: Watcher) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.watcher = watcher

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in SOFTMAX or result.ndim < 3:
            return result

        def uniform() -> torch.Tensor:
            unmasked = args[0] != -torch.inf
            return unmasked / unmasked.sum(args[1], keepdim=True).clamp(min=1)

        other = self.watcher(result, uniform)
        return result if other is None else other.to(result.dtype)
