"""Certified l2 radii of networks with (clipped) ReLUs, from a ball and a box carried through the layers around each image.

Local norms are those of Local-Lip (Huang et al. 2021, "Training certifiably robust neural networks with efficient local
Lipschitz bounds"). Ball and box together are BCP's (Lee et al. 2020, "Lipschitz-certifiable training with a tight outer
bound"). bounds/box.py has the proof. For one image and radius, the moves of the pixels lie in a ball of that radius, and the
moves behind each layer lie in a region that follows from the previous one. The layer's rounding in float32 (rounding.py) is
added to the ball's radius and to each unit's interval. At the head the margin over rival j falls by at most the largest
<w_j - w_y, D> over the last region, plus the rounding of its two logits.

Norms count only the part of a matrix between units that can move; the global certificate (lipschitz.py) counts all units.
A matrix above 2^22 entries keeps its global norm. Lee et al.'s code optimises the last step's primal problem and sets NaN to
0, which bounds nothing; here every split is a bound.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import nn

from benchmark.certificates.bounds.box import FORMED, Convolution, Copies, Linear, Matrix, Region, Stage, largest_product
from benchmark.certificates.bounds.checked_copy import checked_copy
from benchmark.certificates.bounds.layer_bound import UP, LayerBound
from benchmark.certificates.bounds.network_bound import NetworkBound, bound_network
from benchmark.certificates.local import _largest, _parts, above, correct
from benchmark.certificates.local import float32_gap as float32_gap
from benchmark.layers.clipped_relu import ClippedReLU
from benchmark.layers.normalise import Normalise
from benchmark.layers.resize import Resize
from benchmark.layers.tokens import MergeTokens, Patchify
from benchmark.runtime.errors import BenchmarkError

MANY = 64  # images at a time
CLIPS = (nn.ReLU, ClippedReLU)
COPIES = (nn.Flatten, nn.Identity, Normalise, Patchify, MergeTokens, Resize)


def guarantee() -> str:
    return (
        "For every image with certified radius r > 0, the float32 network's prediction equals the label for every image "
        "within l2 distance r (pixels in [0, 1]). Deterministic, from intervals and from norms between units that can move. "
        "Rounding is covered by a-priori error analysis: any order of summation, no reduced-precision products."
    )


@torch.no_grad()
def certify(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, *, largest: float = 8.0, precision: float = 1e-3
) -> torch.Tensor:
    """Return the certified l2 radius of each image; 0 if the prediction is wrong or tied, or nothing could be certified.

    Guarantee: `guarantee()`. Arguments, result and errors as in `local.certify`; layers are linear, ReLU or ClippedReLU.
    """
    network = checked_copy(model)
    linears = _linears(bound_network(network, images[:1], labels[:1]))  # refuses layers even if no image is correct
    radius = torch.zeros(len(images), dtype=torch.float64, device=images.device)
    for part in _parts(correct(network, images, labels), MANY):
        boxed = BoxedNetwork(bound_network(network, images[part], labels[part]), linears)
        for restricted in (False, True):  # the costly norms start from the radii of the cheap ones
            holds = above(boxed.bounded.rival_margins, partial(boxed.margin_drop, restricted=restricted))
            radius[part] = _largest(holds, radius[part], largest, precision)
        for linear in linears:
            if isinstance(linear, Matrix):
                linear.part_norms.clear()
    return radius


class BoxedNetwork:
    """A network around n images, as stages of a linear layer and the clip after it."""

    def __init__(self, bounded: NetworkBound, linears: list[Linear]) -> None:
        self.bounded = bounded
        self.stages: list[Stage] = []
        for index, (layer, linear) in enumerate(zip(bounded.layers, linears, strict=True)):
            x, y = (activation.flatten(1) for activation in bounded.activations[index : index + 2])
            if type(layer) not in CLIPS:
                self.stages.append(Stage(linear, y, bounded.layer_bounds[index].rounding_in_range))
                continue
            if not self.stages or self.stages[-1].theta is not None:
                self.stages.append(Stage(linear, x, torch.zeros_like))
            self.stages[-1] = replace(self.stages[-1], theta=_threshold(layer, x))

    def margin_drop(self, radius: torch.Tensor, *, restricted: bool) -> torch.Tensor:
        """Return how far each margin can fall within `radius` (n,): (n, classes), infinite if float32 could overflow."""
        regions, in_range = self.regions(radius, restricted=restricted)
        last = regions[-1]
        drop = largest_product(-self.bounded.difference, last) + self.bounded.head_rounding(last.rho)
        return torch.where(in_range[:, None], drop * UP, torch.inf)

    def regions(self, radius: torch.Tensor, *, restricted: bool) -> tuple[list[Region], torch.Tensor]:
        """Return the region of the pixels and one behind each stage, and the images on which float32 cannot overflow (n,)."""
        ends = radius[:, None].expand(-1, self.bounded.activations[0][0].numel())
        regions, in_range = [Region(radius, -ends, ends)], torch.ones_like(radius, dtype=torch.bool)
        for stage in self.stages:
            t = stage.rounding(regions[-1].rho)
            in_range = in_range & torch.isfinite(t)
            regions.append(stage.through(regions[-1], t, restricted=restricted))
        return regions, in_range


def _threshold(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return layer.theta.clamp(min=0).flatten() if isinstance(layer, ClippedReLU) else x.new_tensor(torch.inf)


def _linears(bounded: NetworkBound) -> list[Linear]:
    """Return each layer below the head as a linear map; a clip as the identity before it."""
    linears: list[Linear] = []
    for index, (layer, layer_bound) in enumerate(zip(bounded.layers, bounded.layer_bounds, strict=True)):
        shape, units = bounded.activations[index].shape[1:], bounded.activations[index + 1][0].numel()
        if type(layer) in CLIPS:
            linears.append(Copies(LayerBound(lambda y: y, 1.0, torch.zeros_like), shape, units))
        elif type(layer_bound) is not LayerBound:
            raise BenchmarkError(
                f"box_lipschitz bounds linear layers, ReLU and ClippedReLU, not {type(layer).__name__}; "
                "use the certificate local"
            )
        elif type(layer) in COPIES:
            linears.append(Copies(layer_bound, shape, units))
        elif shape.numel() * units <= FORMED:
            linears.append(Matrix(layer_bound, shape, units, bounded.margins.device))
        elif isinstance(layer, nn.Conv2d):
            linears.append(Convolution(layer, layer_bound, shape, units))
        else:
            linears.append(Linear(layer_bound, shape, units))
    return linears
