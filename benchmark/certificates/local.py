"""Certified l2 radii of a network of known layers, from local bounds around each clean image.

bounds/network_bound.py has the proof. The model is a plain `nn.Sequential` of layers with a `LayerBound`
(bounds/layer_bound.py), ending in a linear head with rows w_j: a `NormalisedHead` or `nn.Linear`. Every class but the label
is a rival, and a tie is not certified. The certificate holds for the float32 network that runs.

In a cascade, cheap bounds decide most images and costly ones the rest:
  1. Reject wrong or tied clean predictions.
  2. Accept by composing, with attention's quick bound (attention.py).
  3. Take a few steps down the margin. Reject if an image of the ball is wrong or tied in float64: no sound bound could
     certify it.
  4. Compose with the tight bound, then take the better of composing and the margin gradient, rival by rival.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import nn

from benchmark.certificates.bounds.checked_copy import checked_copy, rebuilt, same_logits
from benchmark.certificates.bounds.network_bound import NetworkBound, bound_network
from benchmark.layers.kinds import shown
from benchmark.runtime.errors import BenchmarkError

MANY = 256  # images at once for the quick bounds
FEW = 8  # images at once for the tight bounds, at most; more do not fit a cache
JACOBIAN_NUMBERS = 2**23  # entries of the Jacobians of that many images, (tokens width)^2 each
DESCENT_STEPS = 8
HOPED = 1.2  # expected gain of the margin gradient over the radius from composing
FARTHEST = 1e4  # pixels; the margin gradient skips larger radii, whose powers overflow


def guarantee() -> str:
    return (
        "For every image with certified radius r > 0, the float32 network's prediction equals the label for every image "
        "within l2 distance r (pixels in [0, 1]). Deterministic. Rounding is covered by a-priori error analysis: any order "
        "of summation, exp within 128 units in the last place, no reduced-precision products."
    )


def certify(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, *, largest: float = 8.0, precision: float = 1e-4
) -> torch.Tensor:
    """Return the certified l2 radius of each image; 0 if the prediction is wrong or tied, or nothing could be certified.

    Guarantee: `guarantee()`. The whole check succeeded at the radius itself, so no monotonicity is needed.

    Args:
        model: a plain `nn.Sequential` of layers with a `LayerBound`, ending in a `NormalisedHead` or `nn.Linear`.
        images: (n, c, h, w) in [0, 1].
        labels: (n,) int64.
        largest: the largest radius to search for, in pixels.
        precision: relative, of the search.

    Returns:
        (n,) float64 radii.

    Raises:
        BenchmarkError: a named layer has no bound, the model is no such sequence, or products use TF32.
    """
    network = checked_copy(model)
    bound_network(network, images[:1], labels[:1])  # refuses layers even if no image is correct
    radius = torch.zeros(len(images), dtype=torch.float64, device=images.device)
    rows = correct(network, images, labels)
    for part in _parts(rows, MANY):
        bounded = bound_network(network, images[part], labels[part])
        radius[part] = _largest(composing(bounded, quick=True), radius[part], largest, precision)
    for part, bounded in tight_bounds(network, images, labels, rows):
        radius[part] = _largest(composing(bounded), radius[part], largest, precision)
        bounded.relaxation_radius = _bounded_radius(bounded, HOPED * radius[part])
        radius[part] = _largest(partial(by_both, bounded), radius[part], largest, precision)
    return radius


def certified_at(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, radius: float) -> torch.Tensor:
    """Return whether each image is certified at one l2 radius in pixels, by the cascade: (n,) bool.

    Guarantee and arguments as in `certify`.

    Raises:
        BenchmarkError: as in `certify`.
        ValueError: the radius is negative or not finite.
    """
    if not 0 <= radius <= sys.float_info.max:
        raise ValueError(f"radius {shown(radius)} is negative or not finite")
    radius = float(radius)
    network = checked_copy(model)
    bound_network(network, images[:1], labels[:1])
    verdict = torch.zeros(len(images), dtype=torch.bool, device=images.device)
    left = correct(network, images, labels)
    for part in _parts(left, MANY):
        bounded = bound_network(network, images[part], labels[part])
        verdict[part] = composing(bounded, quick=True)(_all(radius, part))
    left = left[~verdict[left]]
    left = left[~disproved(network, images[left], labels[left], radius)]
    for part, bounded in tight_bounds(network, images, labels, left):
        bounded.relaxation_radius = _bounded_radius(bounded, _all(min(radius, FARTHEST), part))
        verdict[part] = by_both(bounded, _all(radius, part))
    return verdict


def float32_gap(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """Return how far the float32 network's margins differ from its float64 copy's on these images.

    Arguments, result and errors as in `checked_gap`.
    """
    network = checked_copy(model)

    def bounded(x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        bounds = bound_network(network, x, labels)
        return bounds.margins, bounds.composed(_all(0.0, x), quick=True)

    return checked_gap(model, images, labels, bounded)


@torch.no_grad()
def checked_gap(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    bounded: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
) -> tuple[float, float]:
    """Return the largest difference of a float32 margin from the float64 one, and the largest that the analysis allows.

    Args:
        bounded: maps images and labels to the certified network's float64 margins (n, classes), and to bounds of their
            difference from float32.

    Raises:
        BenchmarkError: a difference exceeds its bound, so the analysis does not describe this machine; or the model
            computes something else than the network of its layers, which certificates are about.
    """
    ours, model, measured, allowed = rebuilt(model), model.eval(), 0.0, 0.0
    for x, y in zip(images.split(MANY), labels.split(MANY), strict=True):
        logits = same_logits(model, ours, x).double()
        margins, bound = bounded(x, y)
        bound = torch.where(bound.isnan(), torch.inf, bound)  # a NaN from constants that overflow is no bound
        gap = (logits.gather(1, y[:, None]) - logits - margins).abs()
        if not (gap <= bound).all():
            raise BenchmarkError(
                f"a float32 margin differs from the float64 one by {float((gap - bound).max()):.2g} more than the error "
                "analysis allows; this machine's float32 arithmetic is not what the certificate assumes"
            )
        measured, allowed = max(measured, float(gap.max())), max(allowed, float(bound.max()))
    return measured, allowed


def above(
    rival_margins: torch.Tensor, margin_drop: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the check that no margin can fall to 0 at the image's radius: (n,) to (n,) bool."""
    return lambda radius: (rival_margins > margin_drop(radius)).all(1)


def composing(bounded: NetworkBound, *, quick: bool = False) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the check `above` by composing the tight bounds, or the quick ones."""
    return above(bounded.rival_margins, partial(bounded.composed, quick=quick))


def by_both(bounded: NetworkBound, radius: torch.Tensor) -> torch.Tensor:
    """Check as `above`: by composing, and by the margin gradient for the rivals that composing leaves open."""
    composed = bounded.composed(radius)
    open_rivals, finite = ~(bounded.rival_margins > composed), torch.isfinite(composed).all(1) & (radius < FARTHEST)
    radius = torch.where(finite, radius, 0.0)  # the gradient has no bound if this one, or its powers, may be infinite
    if not _has_jacobians(bounded):
        return ~open_rivals.any(1)
    for effort in ("each", "all"):  # the cheaper bound first
        count = int(open_rivals.sum(1).max())
        if not count:
            break
        rivals = open_rivals.to(torch.int8).topk(count, dim=1).indices
        shut = bounded.rival_margins.gather(1, rivals) > bounded.margin_drop(radius, rivals, effort=effort)
        shut &= finite[:, None]
        open_rivals = open_rivals & ~torch.zeros_like(open_rivals).scatter(1, rivals, shut)
    return ~open_rivals.any(1)


@torch.enable_grad()
def disproved(network: nn.Sequential, images: torch.Tensor, labels: torch.Tensor, radius: float) -> torch.Tensor:
    """Return whether a few steps down the margin reach a misclassified or tied image within `radius`: (n,) bool.

    `network` is a `checked_copy`. No sound bound can certify such an image, so the costly bounds skip it.
    """
    broken = torch.zeros(len(images), dtype=torch.bool, device=images.device)
    rows = torch.arange(len(images), device=images.device)  # those still to be disproved
    move = torch.zeros_like(images, dtype=torch.float64)
    for _ in range(DESCENT_STEPS + 1):
        if not len(rows):
            break
        moved = (images[rows].double() + move).requires_grad_()
        logits, label = network(moved), labels[rows][:, None]
        margin = (logits.gather(1, label) - logits).scatter(1, label, torch.inf).amin(1)
        still_correct = margin.detach() > 0
        broken[rows[~still_correct]] = True
        (gradient,) = torch.autograd.grad(margin.sum(), moved)
        rows, gradient = rows[still_correct], gradient[still_correct]
        length = torch.linalg.vector_norm(gradient.flatten(1), dim=1).clamp(min=1e-300)
        move = -gradient / length[:, None, None, None] * radius * (1 - 1e-9)
    return broken


@torch.no_grad()
def correct(network: nn.Sequential, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the indices of the images whose label's logit is above every other in float64."""
    parts = [torch.zeros(0, dtype=torch.bool, device=images.device)]
    for x, y in zip(images.split(MANY), labels.split(MANY), strict=True):
        logits, label = network(x.double()), y[:, None]
        parts.append((logits.gather(1, label) > logits.scatter(1, label, -torch.inf)).all(1) if len(x) else parts[0])
    return torch.cat(parts).nonzero()[:, 0]


def tight_bounds(
    network: nn.Sequential, images: torch.Tensor, labels: torch.Tensor, rows: torch.Tensor
) -> Iterator[tuple[torch.Tensor, NetworkBound]]:
    """Yield the images `rows` in parts that fit memory, each with its `NetworkBound`.

    Images whose rounding alone has no finite bound are left out: nothing can certify them.
    """
    prefix, few = None, 1  # the first image shows how large the network is
    while len(rows):
        part, rows = rows[:few], rows[few:]
        bounded = bound_network(network, images[part], labels[part], prefix=prefix)
        hopeful = torch.isfinite(bounded.composed(_all(0.0, part))).all(1)
        if hopeful.all():
            yield part, bounded
        elif hopeful.any():
            part = part[hopeful]
            yield part, bound_network(network, images[part], labels[part], prefix=prefix)
        few = _together(bounded)
        prefix = bounded.prefix if _has_jacobians(bounded) else None


def _together(bounded: NetworkBound) -> int:
    """Return the number of images whose tight bounds fit memory; without the margin gradient no Jacobian is formed."""
    if not _has_jacobians(bounded):
        return MANY
    largest = max(activation[0].numel() for activation in bounded.activations[bounded.prefix.layers :])
    return max(1, min(FEW, JACOBIAN_NUMBERS // largest**2))


def _has_jacobians(bounded: NetworkBound) -> bool:
    """Return whether no layer is too large for the margin gradient."""
    return all(layer_bound.has_jvp for layer_bound in bounded.layer_bounds)


def _parts(rows: torch.Tensor, size: int) -> Sequence[torch.Tensor]:
    """Split `rows` into parts of at most `size`; into none if it is empty."""
    return rows.split(size) if len(rows) else ()


def _bounded_radius(bounded: NetworkBound, radius: torch.Tensor) -> torch.Tensor:
    """Return `radius` (n,) if composing has a finite bound there, else 0: relaxations need finite moves."""
    return torch.where(bounded.composed(radius).isfinite().all(1), radius, 0.0)


def _all(radius: float, part: torch.Tensor) -> torch.Tensor:
    return torch.full((len(part),), radius, dtype=torch.float64, device=part.device)


def check_search(largest: float, precision: float) -> None:
    """Raise a BenchmarkError for a largest radius or a precision with which the search would not end."""
    if not (0 <= largest <= 1e100 and 1e-12 <= precision <= 1):
        raise BenchmarkError(
            f"largest {shown(largest)} should be a radius in pixels, and precision {shown(precision)} from 1e-12 to 1"
        )


def _largest(
    holds: Callable[[torch.Tensor], torch.Tensor], low: torch.Tensor, largest: float, precision: float
) -> torch.Tensor:
    """Return the largest radius that `holds`, from `low`, which holds or is 0: steps up by half, then bisection."""
    check_search(largest, precision)
    high = torch.where(low > 0, low * 1.5, 2.0**-20)
    growing = torch.ones_like(low, dtype=torch.bool)
    while growing.any():
        growing = growing & holds(high) & (low < largest)
        low = torch.where(growing, high, low)
        high = torch.where(growing, high * 1.5, high)
    while ((high - low) > precision * high).any() and (low > 0).any():
        middle = (low + high) / 2
        good = holds(middle)
        low, high = torch.where(good, middle, low), torch.where(good, high, middle)
        high = torch.where(low > 0, high, 0.0)
    return low.clamp(max=largest)  # a smaller ball holds too
