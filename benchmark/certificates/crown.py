"""Linear bound propagation (CROWN, Zhang et al. 2018; alpha-CROWN, Xu et al. 2021) for l2 balls, by the package auto_LiRPA.

The package bounds each margin logit_y - logit_j from below over the whole l2 ball, including the part outside [0, 1]. Every
class but the label is a rival, and a tie is not certified. The package is optional: see docs/certificates.md.

Two things are trusted, not proven: the package, and that float32 rounds at most twice as much within the ball as at the clean
image. The package computes in float64 without rounding outward. The allowance subtracted from every margin is far larger: at
least FLOAT32_ALLOWANCE, and at least twice the largest effect of float32 on a clean margin by the error analysis of local.py.
Two checks raise errors: a bound above the clean margin, and a network in plain operations that differs from the model.
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

SMALLEST = 2.0**-10  # smaller radii are not searched
FLOAT32_ALLOWANCE = 1e-3  # of every margin, at least


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
    """Return the certified l2 radius of each image; 0 if the prediction is wrong or tied, or nothing could be certified.

    Guarantee: `guarantee()`. Arguments and result as in `local.certify`.

    Args:
        alpha_steps: 0 for CROWN; otherwise, if CROWN fails, alpha-CROWN with that many steps of optimising its slopes.

    Raises:
        BenchmarkError: auto_LiRPA is not installed, cannot read the network, or its bound contradicts a clean margin.
    """
    bounds = Bounds(model, images, alpha_steps)
    radii = []
    for image, label in zip(images.split(1), labels.split(1), strict=True):
        holds = partial(bounds.holds, image, label)
        radii.append(_largest(holds, largest, precision) if holds(0.0) else 0.0)
    return torch.tensor(radii, dtype=torch.float64, device=images.device)


def certified_at(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, radius: float, *, alpha_steps: int = 0
) -> torch.Tensor:
    """Return whether each image is certified at one l2 radius, in pixels: (n,) bool. Guarantee and errors as in `certify`."""
    bounds = Bounds(model, images, alpha_steps)
    pairs = zip(images.split(1), labels.split(1), strict=True)
    verdicts = [bounds.holds(*pair, 0.0) and bounds.holds(*pair, radius) for pair in pairs]
    return torch.tensor(verdicts, dtype=torch.bool, device=images.device)


class Bounds:
    """auto_LiRPA's bounds of one network, image by image."""

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
        """Return the package's bounded module. alpha-CROWN stores slopes in it, so it needs a new one each time."""
        # relu's lower line is 0, so that the square roots of LayerProject stay in their domain
        options = {"activation_bound_option": "zero-lb", "optimize_bound_args": {"iteration": self.alpha_steps}}
        with _package_at_work():
            device = self.example.device
            return self.package.BoundedModule(self.written, self.example, bound_opts=options, device=device)

    def holds(self, image: torch.Tensor, label: torch.Tensor, radius: float) -> bool:
        """Return whether every margin of one image stays above the allowance within `radius`; False for NaN."""
        return self.least_margin(image, label, radius) > 0

    def least_margin(self, image: torch.Tensor, label: torch.Tensor, radius: float) -> float:
        """Return a lower bound of the least margin within `radius` minus the allowance; the clean one for radius 0."""
        image = image.double()
        with torch.no_grad():
            clean = _margins(self.network(image), label)[0]
        allowance = self.allowance(image, label)
        if not radius:
            return float(clean.min()) - allowance
        if not math.isfinite(self._composed(image, label, radius)):
            return -math.inf
        lower = self._lower(image, label, radius, "CROWN")
        if self.alpha_steps and not lower.min() > allowance:  # both bounds hold, so the larger one does
            lower = torch.maximum(lower, self._lower(image, label, radius, "CROWN-Optimized"))
        if (lower > clean + 1e-9 * (1 + clean.abs())).any():
            raise BenchmarkError(
                f"crown: auto_LiRPA's lower bound is {float((lower - clean).max()):.3g} above a clean margin "
                f"at l2 {radius:.6g}; its bounds are wrong for this network"
            )
        return float(lower.min()) - allowance

    def allowance(self, image: torch.Tensor, label: torch.Tensor) -> float:
        """Return twice the error analysis' bound at the clean image, at least FLOAT32_ALLOWANCE."""
        return max(2 * self._composed(image, label, 0.0), FLOAT32_ALLOWANCE)

    def _composed(self, image: torch.Tensor, label: torch.Tensor, radius: float) -> float:
        """Return the largest bound of local.py by composing, infinite where float32 could overflow within `radius`."""
        at = torch.full((1,), radius, dtype=torch.float64, device=image.device)
        return float(bound_network(self.network, image, label).composed(at, quick=True).max())

    def _lower(self, image: torch.Tensor, label: torch.Tensor, radius: float, method: str) -> torch.Tensor:
        """Return lower bounds of the margins over each rival, (classes - 1,); -infinity if there is none."""
        classes = self.network(image).shape[1]
        eye = torch.eye(classes, dtype=torch.float64, device=image.device)
        rivals = eye[torch.arange(classes, device=image.device) != label]
        ball = self.package.PerturbationLpNorm(norm=2, eps=radius)
        bounded = self.crown if method == "CROWN" else self._read()
        # the package's weights require gradients: CROWN would keep every graph, gigabytes at width 128
        with _package_at_work(), torch.set_grad_enabled(method != "CROWN"):
            try:
                bound, _ = bounded.compute_bounds(
                    x=(self.package.BoundedTensor(image, ball),),
                    C=(eye[label] - rivals)[None],
                    method=method,
                    bound_upper=False,
                )
            except AssertionError:  # an interval left the domain of a relaxation: no bound
                return torch.full((classes - 1,), -math.inf, dtype=torch.float64, device=image.device)
        return bound.detach()[0].nan_to_num(nan=-math.inf)


def _margins(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return logit_y - logit_j for every rival j, in order: (n, classes - 1)."""
    margins = logits.gather(1, labels[:, None]) - logits
    return margins[torch.arange(logits.shape[1], device=labels.device) != labels[:, None]].reshape(len(labels), -1)


def _largest(holds: Callable[[float], bool], largest: float, precision: float) -> float:
    """Return the largest radius that `holds`: doubling or halving from 1/8, then bisection; 0 below SMALLEST."""
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
    """Make float64 PyTorch's default type, which auto_LiRPA's constants have, and turn NotImplementedError into one line."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    except NotImplementedError as error:
        raise BenchmarkError(f"crown: auto_LiRPA cannot bound this network: {str(error).split(chr(10))[0]}") from error
    finally:
        torch.set_default_dtype(before)
