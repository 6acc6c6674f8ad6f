"""Bounds of how far a network's units move over a ball of images, jointly and one by one (Lee, Lee and Park 2020, BCP;
Huang et al. 2021, Local-Lip).

A `Region` holds, for each image, the units' values z and moves D of them: a ball |D| <= rho and a box -below <= D <=
above. Through y = W z + b the box moves by interval arithmetic, and each unit by at most |row of W| rho; the smaller counts.
A unit whose box is flat after a ReLU or clipped ReLU, dead or at the top on all of the ball, does not move. Its row, and in
the next layer its column, drops out of W (Huang et al. 2021).

The norm of the rest of W comes from power steps for each image, which start at the layer's kept vector; it lies a little too
low (layer_norms.py). Guarantee: with norms that are bounds, the region holds every move of a ball in real arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from benchmark.layers.clipped_relu import ClippedReLU
from benchmark.layers.normalise import Normalise
from benchmark.training.layer_norms import gram, sizes, unit

CLIPS = (nn.ReLU, ClippedReLU)
KNOWN = (nn.Linear, nn.Conv2d, *CLIPS, Normalise, nn.Flatten, nn.Identity)


@dataclass(frozen=True)
class Region:
    """A layer's possible outputs for n images: within l2 distance rho of z, and entry by entry in [z - below, z + above]."""

    z: Tensor  # (n, *shape)
    rho: Tensor  # (n,)
    below: Tensor  # (n, *shape), at least 0
    above: Tensor  # (n, *shape), at least 0

    @property
    def moving(self) -> Tensor:
        """Return 1 where a unit can move, else 0."""
        return (self.below + self.above > 0).to(self.z.dtype)


# (layer's number, its units that count: inputs (n, *inputs), outputs (n, *outputs), 1 or 0) to norms (n,)
RestrictedNorm = Callable[[int, Tensor, Tensor], Tensor]


def ball(images: Tensor, radius: float) -> Region:
    """Return the l2 ball of this radius, in pixels, around each image."""
    around = torch.full_like(images, radius)
    return Region(images, images.new_full((len(images),), radius), around, around)


def propagate(layers: Sequence[nn.Module], region: Region, norm: RestrictedNorm) -> Region:
    """Return the region after layers of KNOWN types; `norm` estimates or bounds the norm of the rest of each linear layer."""
    for index, (layer, after) in enumerate(zip(layers, [*layers[1:], None], strict=True)):
        if isinstance(layer, nn.Linear | nn.Conv2d):
            region = _linear(layer, after, region, partial(norm, index))
        elif isinstance(layer, CLIPS):
            region = _clipped(layer, region)
        elif type(layer) is Normalise:
            std = layer.std
            region = Region(layer(region.z), region.rho / std, region.below / std, region.above / std)
        else:
            region = Region(layer(region.z), region.rho, layer(region.below), layer(region.above))
    return region


def _linear(
    layer: nn.Linear | nn.Conv2d, after: nn.Module | None, region: Region, norm: Callable[[Tensor, Tensor], Tensor]
) -> Region:
    """Return the region after the layer; its ball has the units that still move after a following clip."""
    weight, moving = layer.weight.float(), region.moving
    bias = None if layer.bias is None else layer.bias.float()
    shift = run(layer, (region.above - region.below) / 2, weight)
    spread = run(layer, (region.above + region.below) / 2, weight.abs())
    each = (run(layer, moving, weight**2) + 1e-30).sqrt() * region.rho.reshape(-1, *[1] * (shift.ndim - 1))
    above, below = (torch.minimum(box, each).clamp(min=0) for box in (spread + shift, spread - shift))
    z = run(layer, region.z, weight, bias)
    moved = Region(z, region.rho, below, above)
    rows = _clipped(after, moved).moving if isinstance(after, CLIPS) else torch.ones_like(z)
    return replace(moved, rho=region.rho * norm(moving, rows))


def _clipped(layer: nn.ReLU | ClippedReLU, region: Region) -> Region:
    """Return the region after max(z, 0), or min(max(z, 0), theta): monotone, so ends map to ends, and 1-Lipschitz."""

    def clip(z: Tensor) -> Tensor:
        return layer(z).to(z.dtype) if isinstance(layer, ClippedReLU) else torch.relu(z)  # never in place

    z = clip(region.z)
    return Region(z, region.rho, z - clip(region.z - region.below), clip(region.z + region.above) - z)


def run(layer: nn.Linear | nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Apply the layer with another weight, in the precision of x."""
    if isinstance(layer, nn.Conv2d):
        return layer._conv_forward(x, weight, bias)
    return nn.functional.linear(x, weight, bias)


def restricted_norm(layer: nn.Linear | nn.Conv2d, columns: Tensor, rows: Tensor, start: Tensor, power_steps: int) -> Tensor:
    """Return |R W C| of each image from below, differentiable in W: |R W C v| after some power steps.

    Args:
        columns: C, (n, *inputs), 1 where a unit counts and 0 elsewhere.
        rows: R, (n, *outputs), likewise.
        start: (1, *inputs), the kept vector of the whole layer.

    Returns:
        (n,).
    """

    def restricted(v: Tensor, weight: Tensor) -> Tensor:
        return rows * run(layer, columns * v, weight)

    fixed = layer.weight.detach().float()
    with torch.no_grad():
        v = unit(columns * start)
        v = torch.where(sizes(v) > 0, v, unit(columns))
        for _ in range(power_steps):
            v = unit(gram(lambda w: restricted(w, fixed), v))
    return torch.linalg.vector_norm(restricted(v, layer.weight.float()).flatten(1), dim=1)
