"""Measurements that need the model in this process: its size, and what a pass does beside returning logits."""

from __future__ import annotations

import re
import sys
import threading
from dataclasses import dataclass, field
from types import FrameType
from typing import Annotated

import torch
from pyautoattack import checks
from pydantic import Field
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmark.runtime.errors import out_of_memory, said

DYNAMIC = "it seems to be a dynamic defense! The evaluation with AutoAttack might be insufficient."
THEIRS = re.compile(r' Please use version="rand"\.| See flags_doc\.md for details\.+')  # advice that means nothing here
TAKES_GRADIENTS = frozenset(checks.funcs)  # functions of torch, by name
_TRACING = threading.Lock()


@dataclass(frozen=True)
class Internals:
    parameters: int
    flops: Annotated[int, Field(ge=0, lt=2**63)]  # of a pass over one image
    changes_itself: bool  # weights or buffers change in a pass in evaluation mode
    dynamic: tuple[str, ...]  # AutoAttack's warnings about gradients taken inside a pass
    uncounted: str = ""  # why FLOPs could not be counted


class Remote(nn.Module):
    """A stand-in for another model, such as one in another process."""

    def internals(self, images: torch.Tensor) -> Internals:
        raise NotImplementedError


def internals(model: nn.Module, images: torch.Tensor) -> Internals:
    """Measure the model on images (n, c, h, w), in the process that holds it.

    For a model in another process these are that process's claims: they are reported, and never decide whether an image
    counts as correct.
    """
    if isinstance(model, Remote):
        return model.internals(images)
    devices = [images.device] if images.device.type == "cuda" else []
    with torch.random.fork_rng(devices):  # a random model must not change later draws
        before = _state(model)
        with torch.no_grad():
            for _ in range(2):
                model(images.clone())
        changed = any(not torch.equal(before[name], tensor) for name, tensor in _state(model).items())
        work, uncounted = flops(model, images)
        dynamic = _dynamic(model, images)
        return Internals(sum(p.numel() for p in model.parameters()), work, changed, dynamic, uncounted)


def flops(model: nn.Module, images: torch.Tensor) -> tuple[int, str]:
    """Return the FLOPs of a pass over the first of images (n, c, h, w), and ""; or 0 and why torch could not count them.

    Products, convolutions and attention count.
    """
    counter = FlopCounterMode(display=False)
    try:
        with counter, torch.no_grad():
            model(images[:1].clone())
    except Exception as error:  # the counter's hooks and the model's own do not always agree
        if out_of_memory(error):
            raise
        return 0, f"its operations could not be counted: {said(error)[:200]}"
    return counter.get_total_flops(), ""


def _dynamic(model: nn.Module, images: torch.Tensor) -> tuple[str, ...]:
    """Return AutoAttack's warnings about gradients taken inside a pass, by a tracer that cannot be removed unnoticed."""
    taken: set[str] = set()

    def trace(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name in TAKES_GRADIENTS:
            taken.add(frame.f_code.co_name)

    with _TRACING:
        if not _Watch.installed:
            sys.addaudithook(_Watch.see)
            _Watch.installed = True
        outer, of_threads = sys.gettrace(), threading.gettrace()
        threading.settrace(trace)
        sys.settrace(trace)
        _Watch.changed = False
        try:
            with torch.no_grad():
                model(images)
            untouched = sys.gettrace() is trace and not _Watch.changed
        finally:  # the tracers of before go on
            sys.settrace(outer)
            threading.settrace(of_threads)
    if not untouched:
        return ("the model puts Python's tracing aside during a pass, so gradients taken inside it would go unseen",)
    return (DYNAMIC,) if taken else ()


class _Watch:
    """Notices calls of sys.settrace in this process, by an audit hook, which nobody can remove."""

    installed = changed = False

    @staticmethod
    def see(event: str, _: tuple[object, ...]) -> None:
        if event == "sys.settrace":
            _Watch.changed = True


def _state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return dense copies of weights and buffers; the packed weights of quantised layers are no tensors."""
    tensors = {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    return {name: t.to_dense() if t.layout != torch.strided else t.clone() for name, t in tensors.items()}


@dataclass
class Notes:
    """A logger that keeps each warning of AutoAttack's checks once. Any code in the process may silence Python's own."""

    warnings: list[str] = field(default_factory=list)

    def warning(self, text: object) -> None:
        line = THEIRS.sub("", " ".join(str(text).split()))
        if line not in self.warnings:
            self.warnings.append(line)

    def info(self, text: object) -> None:
        """Ignore progress messages of the authors' files."""

    debug = info
