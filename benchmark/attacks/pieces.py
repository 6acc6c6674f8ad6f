"""A model whose device lacks memory for a whole batch and its gradient: the same function in pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import get_device_states, set_device_states

from benchmark.attacks.gradients import usable_gradients
from benchmark.attacks.internals import Internals, Remote, internals
from benchmark.attacks.prediction import MIN_ROWS, checked, padded
from benchmark.runtime.errors import BenchmarkError, out_of_memory

ROUNDING = 1e-4  # relative to the largest logit
MOST = 4096  # images in a pass; a GPU is no faster with more


def fitting(model: nn.Module, images: torch.Tensor, say: Callable[[str], None] = lambda _: None) -> nn.Module:
    """Return the model itself if a pass over images (n, c, h, w) and its gradient fit into memory, else `InPieces` of it.

    Raises:
        BenchmarkError: not even `MIN_ROWS` images fit.
    """
    size = len(images)
    while not _fits(model, images, size):
        torch.cuda.empty_cache()
        if size <= MIN_ROWS:
            raise BenchmarkError(
                f"out of memory with {size} images of {'x'.join(map(str, images.shape[1:]))} in a pass; use a device with "
                "more, or the CPU"
            )
        size = max(MIN_ROWS, size // 2)
    if size == len(images):
        return model
    say(f"memory holds a pass of {size} images, not of {len(images)}: the model is asked in pieces")
    return InPieces(model, size).eval()


def room(model: nn.Module, images: torch.Tensor, most: int = MOST) -> int:
    """Return how many images a pass may have on a GPU: the size of the batch (n, c, h, w), doubled while a pass and its
    gradient fit, up to `most`. Pass the model that `fitting` returned.
    """
    size = len(images)
    if isinstance(model, InPieces):
        return size
    while 2 * size <= most and _fits(model, images, 2 * size):
        size *= 2
    torch.cuda.empty_cache()
    return size


class InPieces(Remote):
    """A map from images (n, c, h, w) to logits (n, classes), at most `most` images in a pass.

    The gradient repeats each pass with the same random numbers, so that one is in memory at a time. There is no second
    derivative, and no gradient by the weights.
    """

    def __init__(self, model: nn.Module, most: int) -> None:
        super().__init__()
        self.model, self.most = model, most

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.cat([_Piece.apply(piece, self.model) for piece in images.split(self.most)])

    def internals(self, images: torch.Tensor) -> Internals:
        """Measure the model itself on images that fit."""
        return internals(self.model, images[: self.most])


class _Piece(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: torch.Tensor, model: nn.Module) -> torch.Tensor:
        ctx.model, ctx.drawn = model, (torch.get_rng_state(), get_device_states(images))
        logits = _logits(model, images)
        ctx.save_for_backward(images, logits)
        return logits

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, None]:
        images, before = ctx.saved_tensors
        leaf = images.detach().requires_grad_()
        cpu, (devices, states) = ctx.drawn
        with torch.random.fork_rng(devices), torch.enable_grad():
            torch.set_rng_state(cpu)
            set_device_states(devices, states)
            logits = _logits(ctx.model, leaf.clone())
        if not torch.allclose(logits.detach(), before, rtol=0, atol=ROUNDING * (1 + float(before.abs().max()))):
            raise BenchmarkError("the model gives other logits where their gradient is asked for than where it is not")
        if not logits.requires_grad:
            return None, None
        return torch.autograd.grad(logits, leaf, gradient, allow_unused=True)[0], None


def _logits(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    given = padded(images)[: max(len(images), MIN_ROWS)]  # no more than fits
    return checked(model(given), len(given))[: len(images)]


def _fits(model: nn.Module, images: torch.Tensor, count: int) -> bool:
    """Return whether a pass of `count` images, the given ones repeated, and its gradient fit into memory."""
    devices = [images.device] if images.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices):
            given = images.repeat(-(-count // len(images)), 1, 1, 1)[:count]
            usable_gradients(model, given, torch.zeros(count, dtype=torch.long, device=images.device))
    except Exception as error:
        if not out_of_memory(error):
            raise
        return False
    return True
