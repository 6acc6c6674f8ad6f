"""Certified l2 radii of a network of known layers, from local bounds around each clean image.

The model is a plain `nn.Sequential` of layers with a `Step` (steps.py), ending in a `NormalisedHead` with rows w_j. Let the
image move by xi, ||xi|| <= e, layer k's input by D_k, and f_k(x_k + D) = f_k(x_k) + J_k D + R_k(D).

Composing (Havens et al. 2024, section 3): ||D_(k+1)|| <= bound_k(||D_k||), so that at the head the margin over rival j
falls by at most ||w_y - w_j|| ||D_K||.

Margin gradient: with a_k the gradient of the nominal margin at layer k's input (a_K = w_y - w_j, a_k = J_k^T a_(k+1)),
by induction from the head back to any layer i the margin changes by exactly <a_i, D_i> + sum_(k >= i) <a_(k+1), R_k(D_k)>.
So it falls by at most max |<a_i, D_i>| + sum_(k >= i) along_k. Every i is tried and the least fall counts, per rival; i = K
is composing. Here D_k = L_k xi + rest, L_k the Jacobian so far, ||rest|| <= rho_k, rho_(k+1) = ||J_k|| rho_k + remainder_k,
which also gives ||D_k|| <= ||L_k|| e + rho_k, used wherever it is less than what composing gives.

Every class but the label is a rival, and a tie is not certified. The radius returned is one at which the whole check
succeeded, so it needs no monotonicity: a ball that holds contains the smaller ones.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from benchmark.certificates import (  # noqa: F401  they register their layers
    steps_activations,
    steps_composite,
    steps_l2_attention,
    steps_layernorm,
    steps_layers,
)
from benchmark.certificates.spectral import spectral_norm_upper
from benchmark.certificates.steps import UP, Reach, Step, exact_step
from benchmark.errors import BenchmarkError
from benchmark.layers.lipschitz import NormalisedHead

# Taken from every margin for the rounding of the float32 network that runs; see `guarantee`.
FLOAT32_ALLOWANCE = 1e-4


def guarantee() -> str:
    return (
        "For every image with certified radius r > 0, the prediction equals the label for every image within l2 "
        "distance r (pixels in [0, 1]). Deterministic. Proven for the network in real arithmetic with every margin "
        f"lowered by {FLOAT32_ALLOWANCE:g}. That this covers the rounding of the float32 network is measured on the clean "
        "images (the largest difference found must stay below a tenth of it), not proven."
    )


def float32_gap(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """The largest difference of a margin between the float32 network and its float64 copy on these images.

    Raises:
        BenchmarkError: it is above a tenth of the allowance that `certify` takes from every margin.
    """
    with torch.no_grad():
        single, double = model(images).double(), copy.deepcopy(model).double().eval()(images.double())
    margins = [logits.gather(1, labels[:, None]) - logits for logits in (single, double)]
    gap = float((margins[0] - margins[1]).abs().max())
    if not gap <= FLOAT32_ALLOWANCE / 10:
        raise BenchmarkError(
            f"float32 and float64 margins differ by {gap:.2g}, above a tenth of the allowance {FLOAT32_ALLOWANCE:g}; "
            "the certificate is refused, scale the logits down"
        )
    return gap


@dataclass(frozen=True)
class Trace:
    """A network run in float64 around n images, and what both ways need of it."""

    steps: list[Step]
    columns: list[torch.Tensor]  # L_k at each step's input: (directions, n, *shape)
    reaches: list[torch.Tensor]  # ||L_k|| at each step's output: (n,)
    gradients: list[torch.Tensor]  # a_k at the image and at each step's output: (n, classes, *shape)
    rivals: torch.Tensor  # ||w_y - w_j||: (n, classes), 0 for the label itself
    margins: torch.Tensor  # logit_y - logit_j: (n, classes)

    def falls(self, radius: torch.Tensor, *, composed_only: bool = False) -> torch.Tensor:
        """How far each margin can fall within `radius` (n,): (n, classes) upper bounds."""
        delta, rho = radius, torch.zeros_like(radius)
        starts, taken = [], []  # the gradient's part when starting at each step, and what each step takes
        for index, step in enumerate(self.steps):
            if not composed_only:
                reach = Reach(self.columns[index], radius, rho, delta)
                starts.append(self._first_order(index, reach))
                taken.append(step.along(self.gradients[index + 1], reach))
                rho = (step.gain * rho + step.remainder(reach)) * UP
            delta = step.bound(delta)
            if not composed_only:
                delta = torch.minimum(delta, self.reaches[index] * radius * UP + rho)
        least = self.rivals * delta[:, None]
        later = torch.zeros_like(least)
        for start, part in zip(reversed(starts), reversed(taken), strict=True):
            later = later + part
            least = torch.minimum(least, (start + later) * UP)
        return least

    def _first_order(self, index: int, reach: Reach) -> torch.Tensor:
        """<a, D> at the input of a step is at most this: (n, classes)."""
        a = self.gradients[index].flatten(2)
        sizes = torch.linalg.vector_norm(a, dim=2)
        through = torch.linalg.vector_norm(torch.einsum("pnm,nrm->pnr", reach.columns.flatten(2), a), dim=0)
        split = through * reach.radius[:, None] + sizes * reach.rho[:, None]
        return torch.minimum(split, sizes * reach.delta[:, None]) * (1 + 1e-9)


def certify(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, *, largest: float = 8.0, precision: float = 1e-4
) -> torch.Tensor:
    """Certified l2 radius of each image; 0 where the prediction is wrong, tied, or nothing could be certified.

    Args:
        model: a plain `nn.Sequential` of layers with a Step, ending in a `NormalisedHead`.
        images: (n, c, h, w) in [0, 1].
        labels: (n,) int64.
        largest: radii above this are not looked for, in pixels.
        precision: relative, of what the bounds give.

    Returns:
        (n,) float64 radii.

    Raises:
        BenchmarkError: a layer without a declared bound (named), or a model that is no such sequence.
    """
    traced = trace(model, images, labels)
    is_rival = torch.ones_like(traced.margins, dtype=torch.bool).scatter_(1, labels[:, None], False)

    def holds(radius: torch.Tensor, composed_only: bool) -> torch.Tensor:
        falls = traced.falls(radius, composed_only=composed_only)
        return ((traced.margins - FLOAT32_ALLOWANCE > falls) | ~is_rival).all(1) & (radius <= largest)

    radius = torch.zeros(len(images), dtype=torch.float64, device=images.device)
    for composed_only in (True, False):
        radius = _largest(partial(holds, composed_only=composed_only), radius, precision)
    return radius


def _largest(holds: Callable[[torch.Tensor], torch.Tensor], low: torch.Tensor, precision: float) -> torch.Tensor:
    """From `low`, which holds (or is 0), the largest radius found to hold: steps up by half, then bisection."""
    high = torch.where(low > 0, low * 1.5, 2.0**-20)
    growing = torch.ones_like(low, dtype=torch.bool)
    while growing.any():
        growing = growing & holds(high)
        low = torch.where(growing, high, low)
        high = torch.where(growing, high * 1.5, high)
    while ((high - low) > precision * high).any() and (low > 0).any():
        middle = (low + high) / 2
        good = holds(middle)
        low, high = torch.where(good, middle, low), torch.where(good, high, middle)
        high = torch.where(low > 0, high, 0.0)
    return low


def trace(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Trace:
    """Runs the float64 copy of `model`, collecting steps, Jacobians so far and margin gradients.

    Raises:
        BenchmarkError: as `certify`.
    """
    if type(model) is not nn.Sequential or type(model[-1]) is not NormalisedHead:
        raise BenchmarkError("the local certificate needs a plain nn.Sequential that ends in a NormalisedHead")
    refuse_hooks(model)
    model = copy.deepcopy(model).double().eval().requires_grad_(False)
    head = model[-1]
    assert isinstance(head, NormalisedHead)
    with torch.enable_grad():
        activations = [images.double().requires_grad_()]
        steps: list[Step] = []
        for layer in model[:-1]:
            steps.append(exact_step(layer, activations[-1].detach()))
            activations.append(layer(activations[-1]))
        last = activations[-1]
        if last.ndim != 2:
            raise BenchmarkError(f"the head needs one vector an image; the layer before it gives {tuple(last.shape)}")
        difference = head.weight[labels][:, None] - head.weight[None]  # w_y - w_j: (n, classes, width)
        gradients = [
            torch.autograd.grad((last * difference[:, rival]).sum(), activations, retain_graph=True)
            for rival in range(difference.shape[1])
        ]
    logits = head(last.detach())
    columns, reaches = _columns(images.double(), steps)
    return Trace(
        steps=steps,
        columns=columns,
        reaches=reaches,
        gradients=[torch.stack(parts, dim=1) for parts in zip(*gradients, strict=True)],
        rivals=torch.linalg.vector_norm(difference, dim=-1) * UP,
        margins=logits.gather(1, labels[:, None]) - logits,
    )


def _columns(images: torch.Tensor, steps: list[Step]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """L at each step's input and ||L|| at its output. Only L L^T matters, so L is kept no wider than it is tall."""
    size = images[0].numel()
    basis = torch.eye(size, dtype=torch.float64, device=images.device)
    now = basis.reshape(size, 1, *images.shape[1:]).expand(-1, len(images), *images.shape[1:])
    columns, reaches = [], []
    reach = torch.ones(len(images), dtype=torch.float64, device=images.device)
    for step in steps:
        columns.append(now)
        now = step.push(now)
        flat = now.flatten(2).permute(1, 2, 0)  # (n, outputs, directions)
        if flat.shape[1] < flat.shape[2]:
            flat = torch.linalg.qr(flat.mT, mode="r").R.mT
            now = flat.permute(2, 0, 1).reshape(flat.shape[2], *now.shape[1:])
        linear = type(step) is Step  # then the product of norms is near enough
        reach = reach * step.gain * UP if linear else spectral_norm_upper(flat) * (1 + 1e-9)
        reaches.append(reach)
    return columns, reaches


def refuse_hooks(model: nn.Module) -> None:
    """A hook, or a forward put on one instance, can change what a layer returns behind its declared bound."""
    for module in model.modules():
        if "forward" in vars(module):
            raise BenchmarkError(
                f"a layer {type(module).__name__} has a forward of its own; the certificate is refused"
            )
        if module._forward_hooks or module._forward_pre_hooks:
            raise BenchmarkError(
                f"the layer {type(module).__name__} carries a forward hook; the certificate is refused"
            )
