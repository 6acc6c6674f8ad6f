"""Certified l2 radii of LoFAST as Havens et al. 2024 publish them: Theorem 1 composed through the layers, then Proposition 1.

||D_(k+1)|| <= delta_k(||D_k||), where delta_k of attention is Theorem 1's bound (`method="paper"` of bounds/sensitivity.py:
exact zeta of Lemma 1, exact ||M|| of Lemma 2 with the appendix's M, since equation (25) of the main text is no bound). For
every other layer it is the Lipschitz constant times ||D_k||; LayerNorm, which the paper lacks, has its bound around the
image. An image is certified if margin > sqrt(2) ||W|| delta, with W the head, for all rivals alike. The paper counts every
layer but attention as 1-Lipschitz; here mean pooling has 1/sqrt(tokens). Float32's rounding is covered as in local.py.

Options of `margin_drop` add this project's improvements one by one, to show their effect on the same weights (local.py has
all, and the margin gradient). `attention`: the tight bound of bounds/sensitivity.py. `projection`: its sensitivity around
the image's tokens in place of 1. `rivals`: ||w_y - w_j|| of each rival in place of sqrt(2) ||W||.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import nn

from benchmark.certificates.bounds.attention import AttentionBound, where_finite
from benchmark.certificates.bounds.checked_copy import HEADS, checked_copy
from benchmark.certificates.bounds.layer_bound import UP
from benchmark.certificates.bounds.network_bound import NetworkBound, bound_network
from benchmark.certificates.bounds.projection import ProjectionBound
from benchmark.certificates.bounds.sensitivity import AttentionSensitivity, attention_sensitivity
from benchmark.certificates.bounds.spectral import spectral_norm_upper
from benchmark.certificates.local import _largest, _parts, above, correct
from benchmark.certificates.local import float32_gap as float32_gap
from benchmark.layers.attention import ResidualAttention
from benchmark.runtime.errors import BenchmarkError

AT_ONCE = 64


def guarantee() -> str:
    return (
        "For every image with certified radius r > 0, the float32 network's prediction equals the label for every image "
        "within l2 distance r (pixels in [0, 1]). Deterministic, by the published bound (Theorem 1 with the appendix's "
        "score map, Proposition 1). Rounding is covered by a-priori error analysis: any order of summation, exp within 128 "
        "units in the last place, no reduced-precision products."
    )


def certify(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, *, largest: float = 8.0, precision: float = 1e-4
) -> torch.Tensor:
    """Return the certified l2 radius of each image; 0 if the prediction is wrong or tied, or nothing could be certified.

    Guarantee: `guarantee()`. Arguments, result and errors as in `local.certify`.
    """
    network, radius = checked_copy(model), torch.zeros(len(images), dtype=torch.float64, device=images.device)
    bound_network(network, images[:1], labels[:1])  # refuses layers even if no image is correct
    for part in _parts(correct(network, images, labels), AT_ONCE):
        bounded = bound_network(network, images[part], labels[part])
        holds = above(bounded.rival_margins, Published(network, bounded).margin_drop)
        radius[part] = _largest(holds, radius[part], largest, precision)
    return radius


class Published:
    """The published bound around the images of a `NetworkBound`.

    Raises:
        BenchmarkError: attention has another form than the paper's, or its score map is too large to form.
    """

    def __init__(self, network: nn.Sequential, bounded: NetworkBound) -> None:
        head = network[-1]
        assert isinstance(head, HEADS)
        self.bounded, self.head = bounded, spectral_norm_upper(head.weight)
        self.attention: dict[int, AttentionSensitivity] = {}
        for index, layer_bound in enumerate(bounded.layer_bounds):
            if isinstance(layer_bound, AttentionBound):
                if not layer_bound.has_jvp:
                    raise BenchmarkError("attention this wide (tokens * width > 8192) has no exact published bound here")
                if not isinstance(layer_bound.layer, ResidualAttention):  # biases and scales are not in theorem 1
                    raise BenchmarkError("the published bound is of ResidualAttention; use the certificate `local`")
                self.attention[index] = attention_sensitivity(layer_bound.x, *layer_bound.layer.head_weights())

    def margin_drop(
        self, radius: torch.Tensor, *, attention: bool = False, projection: bool = False, rivals: bool = False
    ) -> torch.Tensor:
        """Return how far each margin can fall within `radius` (n,) pixels: (n, classes). See above for the options."""
        bounded, delta = self.bounded, radius
        for index, layer_bound in enumerate(bounded.layer_bounds):
            rounding = layer_bound.rounding_in_range(delta)
            if index in self.attention:
                method = "tight" if attention else "paper"
                delta = where_finite(partial(self.attention[index].bound, method=method), delta)
            elif not isinstance(layer_bound, ProjectionBound) or projection:
                delta = layer_bound.bound(delta)
            delta = (delta + rounding) * UP
        slope = bounded.difference_norms if rivals else math.sqrt(2) * self.head
        return (slope * delta[:, None] + bounded.head_rounding(delta)) * UP
