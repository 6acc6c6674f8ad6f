"""How far the units of a network can move over a ball of images, jointly and one by one (Lee, Lee and Park 2020, BCP;
Huang et al. 2021, Local-Lip).

A `Region` holds, for each image, the units' values z and moves D of them: a ball |D| <= rho and a box -below <= D <=
above. Through y = W z + b the box moves by interval arithmetic, each unit by at most |row of W| rho too, and the less
counts. Units whose box is flat after a ReLU or a clipped ReLU, dead or at the top on all of the ball, do not move, so that
their rows, and in the next layer their columns, drop out of W (Huang et al. 2021).

The norm of what is left of W comes from power steps for each image, from the layer's kept vector, and lies a little
below it (layer_norms.py). With norms that are bounds, the region holds every move of a ball in real arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from benchmark.layers.clipped_relu import ClippedReLU
from benchmark.layers.normalise import Normalise
from benchmark.runtime.errors import BenchmarkError
from benchmark.training.layer_norms import gram, sizes, unit

CLIPS = (nn.ReLU, ClippedReLU)
KNOWN = (nn.Linear, nn.Conv2d, *CLIPS, Normalise, nn.Flatten, nn.Identity)


@dataclass(frozen=True)
class Region:
    """Of n images: z, below and above (n, *shape), below and above at least 0; rho (n,)."""

    z: Tensor
    rho: Tensor
    below: Tensor
    above: Tensor

    @property
    def moving(self) -> Tensor:
        """1 where a unit can move, else 0."""
        return (self.below + self.above > 0).to(self.z.dtype)


# of the layer of this number, with the units before (n, *inputs) and after (n, *outputs) it that count, 1 or 0: (n,)
RestrictedNorm = Callable[[int, Tensor, Tensor], Tensor]


def ball(images: Tensor, radius: float) -> Region:
    """The l2 ball of this radius around each image."""
    around = torch.full_like(images, radius)
    return Region(images, images.new_full((len(images),), radius), around, around)


def propagate(layers: Sequence[nn.Module], region: Region, norm: RestrictedNorm) -> Region:
    """The region after layers of KNOWN types; `norm` gives, or bounds, the norm of what is left of each linear one."""
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


def check(layers: Iterable[nn.Module], objective: str) -> None:
    """A BenchmarkError for a layer that is not among KNOWN, by exact type."""
    if unknown := next((type(layer).__name__ for layer in layers if type(layer) not in KNOWN), None):
        known = ", ".join(kind.__name__ for kind in KNOWN)
        raise BenchmarkError(f"the {objective} objective knows {known}; it has no bounds for {unknown}")


def _linear(
    layer: nn.Linear | nn.Conv2d, after: nn.Module | None, region: Region, norm: Callable[[Tensor, Tensor], Tensor]
) -> Region:
    """rho is the ball of the units that can still move after the clip that follows, the only ones that it asks for."""
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
    """max(z, 0), also min(z, theta): monotone, so the ends of the box go to the ends; 1-Lipschitz."""

    def clip(z: Tensor) -> Tensor:
        return layer(z) if isinstance(layer, ClippedReLU) else torch.relu(z)  # never in place

    z = clip(region.z)
    return Region(z, region.rho, z - clip(region.z - region.below), clip(region.z + region.above) - z)


def run(layer: nn.Linear | nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The layer with another weight, in the precision of x."""
    if isinstance(layer, nn.Conv2d):
        return layer._conv_forward(x, weight, bias)
    return nn.functional.linear(x, weight, bias)


def restricted_norm(
    layer: nn.Linear | nn.Conv2d, columns: Tensor, rows: Tensor, start: Tensor, power_steps: int
) -> Tensor:
    """|W_RC| of each image, differentiable in W, from below: |R W C v| after some power steps.

    Args:
        columns: C, (n, *inputs), 1 where a unit counts and 0 elsewhere.
        rows: R, (n, *outputs).
        start: (1, *inputs), the vector of the whole layer.

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
