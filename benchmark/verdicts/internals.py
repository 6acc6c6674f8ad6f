"""What only the process that holds a model can say of it: its size, and what a pass does beside returning logits."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from logging.handlers import BufferingHandler
from typing import Annotated

import torch
from pyautoattack import checks
from pydantic import Field
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True)
class Internals:
    """Parameters; FLOPs of a pass over one image; whether a pass in evaluation mode changes weights or buffers; and what
    AutoAttack's check says against gradients taken inside a pass.
    """

    parameters: int
    flops: Annotated[int, Field(ge=0, lt=2**63)]
    changes_itself: bool
    dynamic: tuple[str, ...]


class Remote(nn.Module):
    """A model that stands for another, as for one in another process."""

    def internals(self, images: torch.Tensor) -> Internals:
        raise NotImplementedError


def internals(model: nn.Module, images: torch.Tensor) -> Internals:
    """Measured on images (n, c, h, w), where the model is.

    Where the model is in another process, these are that process's words: they decide what is said of a row, never whether
    an image counts as right.
    """
    if isinstance(model, Remote):
        return model.internals(images)
    devices = [images.device] if images.device.type == "cuda" else []
    with torch.random.fork_rng(devices):  # what a random model draws here is not missing elsewhere
        return _measured(model, images)


def flops(model: nn.Module, images: torch.Tensor) -> int:
    """FLOPs of a pass over the first of the images (n, c, h, w): of products, convolutions and attention."""
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(images[:1].clone())
    return counter.get_total_flops()


def _measured(model: nn.Module, images: torch.Tensor) -> Internals:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for _ in range(2):
            model(images.clone())
    changed = any(not torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    work = flops(model, images)
    for name in checks.funcs:
        checks.funcs[name] = 0  # pyautoattack counts over the whole process
    with logged_warnings() as flags, torch.no_grad():
        checks.check_dynamic(model, images, False, logger=logging.getLogger("auto-attack"))
    return Internals(sum(p.numel() for p in model.parameters()), work, changed, tuple(flags))


@contextmanager
def logged_warnings() -> Iterator[list[str]]:
    """The warnings that libraries log inside the block, each once, once it ends: AutoAttack flags an evaluation so."""
    found: list[str] = []
    handler, root = BufferingHandler(sys.maxsize), logging.getLogger()
    handler.setLevel(logging.WARNING)
    root.addHandler(handler)
    try:
        yield found
    finally:
        root.removeHandler(handler)
        found += dict.fromkeys(" ".join(record.getMessage().split()) for record in handler.buffer)
