"""Linear bound propagation (CROWN, Zhang et al. 2018; alpha-CROWN, Xu et al. 2021) for l2 balls, by the package auto_LiRPA.

The package bounds each margin logit_y - logit_j from below over the whole l2 ball, the part of it outside [0, 1] included;
every class but the label is a rival, and a tie is not certified. Optional: docs/certificates.md says how to install it.

What is trusted, not proven here: the package itself, and that float32 rounds at most twice as much within the ball as at the
clean image. The package computes in the float64 asked of it, to nearest, without rounding
outward; the allowance taken from every margin, FLOAT32_ALLOWANCE or more, is far above that, and twice what float32 can do to
a margin of the clean image by the error analysis of local.py. Two checks are made of each answer: a bound above the clean
margin, or a network written in plain operations that computes something else, is an error.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import nn

from benchmark.certificates import local
from benchmark.certificates.bounds.checked_copy import checked_copy
from benchmark.certificates.bounds.network_bound import bound_network
from benchmark.certificates.bounds.plain_layers import plain
from benchmark.certificates.local import float32_gap as float32_gap
from benchmark.runtime.errors import BenchmarkError

__all__ = ["certified_at", "certify", "float32_gap", "guarantee"]

SMALLEST = 2.0**-10  # radii below this are not looked for
FLOAT32_ALLOWANCE = 1e-3  # at least


def guarantee() -> str:
    return (
        "For every image with certified radius r > 0, the prediction equals the label for every image within l2 "
        f"distance r (pixels in [0, 1]), if auto_LiRPA {_package().__version__} is right and float32 rounds at most twice as "
        "much there as on the clean image: its linear bounds are trusted, computed in float64 without outward rounding, "
        f"every margin lowered by twice what float32 can do to it on the clean image, and by {FLOAT32_ALLOWANCE:g} at least. "
        "Deterministic."
    )


def certify(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    largest: float = 8.0,
    precision: float = 0.01,
    alpha_steps: int = 0,
) -> torch.Tensor:
    """Certified l2 radius of each image; 0 where the prediction is wrong, tied, or nothing could be certified.

    Guarantee: `guarantee()`. Arguments and result as of `local.certify`.

    Args:
        alpha_steps: 0 for CROWN; else, where it fails, alpha-CROWN with that many steps of optimising its slopes.

    Raises:
        BenchmarkError: auto_LiRPA is not installed, cannot read the network, or its bound contradicts a clean margin.
    """
    bounds = Bounds(model, images, alpha_steps)
    radii = []
    for image, label in zip(images.split(1), labels.split(1), strict=True):
        correct = bounds.least_margin(image, label, 0.0) > 0
        radii.append(_largest(partial(bounds.holds, image, label), largest, precision) if correct else 0.0)
    return torch.tensor(radii, dtype=torch.float64, device=images.device)


def certified_at(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, radius: float, *, alpha_steps: int = 0
) -> torch.Tensor:
    """Whether each image is certified at one l2 radius, in pixels: (n,) bool.

    Raises:
        BenchmarkError: as `certify`.
    """
    bounds = Bounds(model, images, alpha_steps)
    held = torch.zeros(len(images), dtype=torch.bool, device=images.device)
    for i in _correct(bounds.network, images, labels).nonzero()[:, 0].tolist():
        held[i] = bounds.holds(images[i : i + 1], labels[i : i + 1], radius)
    return held


class Bounds:
    """auto_LiRPA's view of one network, image by image."""

    def __init__(self, model: nn.Module, images: torch.Tensor, alpha_steps: int) -> None:
        self.package, self.alpha_steps = _package(), alpha_steps
        self.network = checked_copy(model)
        written = plain(self.network)
        example = images[:1].double()
        with torch.no_grad():
            gap = float((written(example) - self.network(example)).abs().max())
        if not gap <= 1e-9 * (1 + float(self.network(example).abs().max())):
            raise BenchmarkError(f"crown: the network written in plain operations differs from the model by {gap:.2g}")
        self.written, self.example = written, example
        self.crown = self._read()

    def _read(self) -> Any:
        """The package's bounded module. alpha-CROWN leaves its slopes behind in it, so that needs a fresh one each time."""
        # relu's lower line is 0, not a slope: the square roots of LayerProject then stay in their domain
        options = {"activation_bound_option": "zero-lb", "optimize_bound_args": {"iteration": self.alpha_steps}}
        with _package_at_work():
            device = self.example.device
            return self.package.BoundedModule(self.written, self.example, bound_opts=options, device=device)

    def holds(self, image: torch.Tensor, label: torch.Tensor, radius: float) -> bool:
        """Whether every margin of one image stays above the allowance within `radius`; NaN does not hold."""
        return self.least_margin(image, label, radius) > 0

    def least_margin(self, image: torch.Tensor, label: torch.Tensor, radius: float) -> float:
        """A lower bound of the least margin over all rivals within `radius`, less the allowance; 0 gives the margin."""
        image = image.double()
        with torch.no_grad():
            clean = _margins(self.network(image), label)[0]
        allowance = self.allowance(image, label)
        if not radius:
            return float(clean.min()) - allowance
        if not self.in_range(image, label, radius):
            return -math.inf
        lower = self._lower(image, label, radius, "CROWN")
        if self.alpha_steps and not lower.min() > allowance:  # either bound holds, so the larger does
            lower = torch.maximum(lower, self._lower(image, label, radius, "CROWN-Optimized"))
        if (lower > clean + 1e-9 * (1 + clean.abs())).any():
            raise BenchmarkError(
                f"crown: auto_LiRPA's lower bound is {float((lower - clean).max()):.3g} above a clean margin "
                f"at l2 {radius:.6g}; its bounds are wrong for this network"
            )
        return float(lower.min()) - allowance

    def allowance(self, image: torch.Tensor, label: torch.Tensor) -> float:
        """Taken from every margin of one image: twice what the error analysis allows where it is clean, or the least."""
        still = torch.zeros(1, dtype=torch.float64, device=image.device)
        allowed = bound_network(self.network, image, label).composed(still, quick=True)
        return max(2 * float(allowed.max()), FLOAT32_ALLOWANCE)

    def in_range(self, image: torch.Tensor, label: torch.Tensor, radius: float) -> bool:
        """Whether float32 cannot overflow within `radius`, by the bounds of local.py, which are infinite where it could."""
        whole = torch.full((1,), radius, dtype=torch.float64, device=image.device)
        return bool(bound_network(self.network, image, label).composed(whole, quick=True).isfinite().all())

    def _lower(self, image: torch.Tensor, label: torch.Tensor, radius: float, method: str) -> torch.Tensor:
        """(classes - 1,) lower bounds of the margins over each rival; -infinity where there is none."""
        classes = self.network(image).shape[1]
        eye = torch.eye(classes, dtype=torch.float64, device=image.device)
        rivals = eye[torch.arange(classes, device=image.device) != label]
        ball = self.package.PerturbationLpNorm(norm=2, eps=radius)
        bounded = self.crown if method == "CROWN" else self._read()
        # the package's weights ask for gradients: CROWN would keep every graph, gigabytes for a network of width 128
        with _package_at_work(), torch.set_grad_enabled(method != "CROWN"):
            try:
                bound, _ = bounded.compute_bounds(
                    x=(self.package.BoundedTensor(image, ball),),
                    C=(eye[label] - rivals)[None],
                    method=method,
                    bound_upper=False,
                )
            except AssertionError:  # so it says that an interval grew out of the domain of a relaxation: no bound here
                return torch.full((classes - 1,), -math.inf, dtype=torch.float64, device=image.device)
        return bound.detach()[0].nan_to_num(nan=-math.inf)


@torch.no_grad()
def _correct(network: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """(n,) bool: every margin of the clean image is above the least allowance; the others are certified by nothing."""
    return _margins(network(images.double()), labels).amin(1) > FLOAT32_ALLOWANCE


def _margins(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """logit_y - logit_j for every rival j, in order: (n, classes - 1)."""
    margins = logits.gather(1, labels[:, None]) - logits
    return margins[torch.arange(logits.shape[1], device=labels.device) != labels[:, None]].reshape(len(labels), -1)


def _largest(holds: Callable[[float], bool], largest: float, precision: float) -> float:
    """The largest radius found to hold: by doubling or halving from 1/8, then bisection; 0 below SMALLEST."""
    local.check_search(largest, precision)
    low, high = 0.0, min(0.125, largest)
    if holds(high):
        while low < high:
            low, high = high, min(2 * high, largest)
            if low < high and not holds(high):
                break
    else:
        while not low and high / 2 >= SMALLEST:
            low, high = (high / 2, high) if holds(high / 2) else (0.0, high / 2)
    while low and high - low > precision * high:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _package() -> ModuleType:
    try:
        return importlib.import_module("auto_LiRPA")
    except ImportError as error:
        raise BenchmarkError(
            f"the certificate crown needs the package auto_LiRPA 0.7, which does not import ({error}); "
            'see "CROWN" in docs/certificates.md for how to install it, or use the certificate local'
        ) from error


@contextmanager
def _package_at_work() -> Iterator[None]:
    """auto_LiRPA makes constants in torch's default type, and says what it cannot do by NotImplementedError."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    except NotImplementedError as error:
        raise BenchmarkError(f"crown: auto_LiRPA cannot bound this network: {str(error).split(chr(10))[0]}") from error
    finally:
        torch.set_default_dtype(before)
