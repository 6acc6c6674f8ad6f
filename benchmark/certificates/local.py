"""Certified l2 radii by carrying a local bound through the network, layer by layer, around each clean image.

The model is an `nn.Sequential` of layers known here. If the input moves by at most e in l2, the output of layer k moves
by at most d_k, d_0 = e, d_(k+1) = bound_k(d_k), each `bound_k` a proven upper bound of
sup ||f_k(x') - f_k(x)|| over ||x' - x|| <= d_k around the nominal x (Havens et al. 2024, section 3, eq. 9). With the
last layer linear with rows w_j, a rival j wins only if ||w_y - w_j|| d_K reaches the margin logit_y - logit_j: every
rival is checked with its own norm, and a tie is not certified. Each bound is monotone in its argument, so the certified
radii of an image form an interval from 0, found by bisection from below: the radius returned was itself verified.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import singledispatch

import torch
from torch import nn

from benchmark.certificates.lofast import attention_sensitivity
from benchmark.certificates.spectral import spectral_norm_upper
from benchmark.errors import BenchmarkError
from benchmark.layers.attention import ResidualAttention
from benchmark.layers.lipschitz import BoundedLinear, NormalisedHead, SLLBlock
from benchmark.layers.normalise import Normalise
from benchmark.layers.tokens import LayerProject, MeanPool, Patchify, Positions

Bound = Callable[[torch.Tensor], torch.Tensor]

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


def certify(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, *, largest: float = 8.0, steps: int = 40
) -> torch.Tensor:
    """Certified l2 radius of each image; 0 where the prediction is wrong, tied, or nothing could be certified.

    Args:
        model: an `nn.Sequential` of layers with a declared bound, ending in a `NormalisedHead`.
        images: (n, c, h, w) in [0, 1].
        labels: (n,) int64.
        largest: radii above this are reported as this, in pixels.
        steps: bisection steps, so radii are within largest / 2^steps of what the bounds give.

    Returns:
        (n,) float64 radii.

    Raises:
        BenchmarkError: a layer without a declared bound (named), or a model that is no such sequence.
    """
    bounds, logits, head = trace(model, images)
    weight = head.weight.detach()
    rivals = torch.linalg.vector_norm(weight[labels][:, None] - weight[None], dim=-1) * (1 + 1e-12)
    margins = logits.gather(1, labels[:, None]) - logits - FLOAT32_ALLOWANCE
    is_rival = torch.ones_like(margins, dtype=torch.bool).scatter_(1, labels[:, None], False)

    def holds(radius: torch.Tensor) -> torch.Tensor:
        moved = radius
        for bound in bounds:
            moved = bound(moved)
        safe = margins > rivals * moved[:, None]
        return (safe | ~is_rival).all(1)

    low = torch.zeros(len(images), dtype=torch.float64, device=images.device)
    high = torch.full_like(low, largest)
    low = torch.where(holds(high), high, low)
    for _ in range(steps):
        middle = (low + high) / 2
        good = holds(middle)
        low, high = torch.where(good, middle, low), torch.where(good, high, middle)
    return low


@torch.no_grad()
def trace(model: nn.Module, images: torch.Tensor) -> tuple[list[Bound], torch.Tensor, NormalisedHead]:
    """Runs the float64 copy of `model` and collects each layer's bound around what it sees: bounds, logits, head."""
    if type(model) is not nn.Sequential or type(model[-1]) is not NormalisedHead:
        raise BenchmarkError("the local certificate needs a plain nn.Sequential that ends in a NormalisedHead")
    _refuse_hooks(model)
    model = copy.deepcopy(model).double().eval()
    x, bounds = images.double(), []
    for layer in model[:-1]:
        if type(layer) not in local_bound.registry:  # a subclass may compute something else
            local_bound.dispatch(object)(layer, x)
        bounds.append(local_bound(layer, x))
        x = layer(x)
    head = model[-1]
    assert isinstance(head, NormalisedHead)
    if x.ndim != 2:
        raise BenchmarkError(f"the head needs one vector an image; the layer before it gives shape {tuple(x.shape)}")
    return bounds, head(x), head


def _refuse_hooks(model: nn.Module) -> None:
    """A hook can change what a layer returns behind its declared bound."""
    for module in model.modules():
        if module._forward_hooks or module._forward_pre_hooks:
            raise BenchmarkError(
                f"the layer {type(module).__name__} carries a forward hook; the certificate is refused"
            )


def _needs(layer: nn.Module, x: torch.Tensor, ndim: int) -> None:
    if x.ndim != ndim:
        raise BenchmarkError(f"the layer {type(layer).__name__} needs {ndim} axes; it is given shape {tuple(x.shape)}")


@singledispatch
def local_bound(layer: nn.Module, x: torch.Tensor) -> Bound:
    """The map from an upper bound of the input's l2 change (n,) to one of the output's, around nominal inputs x."""
    raise BenchmarkError(
        f"no bound is declared for the layer {type(layer).__name__}; the certificate is refused rather than guessed"
    )


def _times(constant: float | torch.Tensor) -> Bound:
    return lambda radius: radius * constant


@local_bound.register
def _(layer: Patchify, x: torch.Tensor) -> Bound:
    _needs(layer, x, 4)
    if x.shape[2] % layer.patch or x.shape[3] % layer.patch:
        raise BenchmarkError(f"patches of {layer.patch} do not tile {x.shape[2]}x{x.shape[3]} images")
    return _times(1.0)


@local_bound.register
def _(layer: Positions, x: torch.Tensor) -> Bound:
    if x.shape[1:] != layer.offset.shape:  # broadcasting would repeat the input, which is no isometry
        raise BenchmarkError(f"positions {tuple(layer.offset.shape)} do not fit tokens {tuple(x.shape[1:])}")
    return _times(1.0)


@local_bound.register
def _(layer: Normalise, x: torch.Tensor) -> Bound:
    return _times((1 / layer.std) * (1 + 1e-12))


@local_bound.register
def _(layer: MeanPool, x: torch.Tensor) -> Bound:
    _needs(layer, x, 3)
    return _times((1 + 1e-12) / math.sqrt(x.shape[1]))


@local_bound.register
def _(layer: BoundedLinear, x: torch.Tensor) -> Bound:
    return _times(spectral_norm_upper(layer.weight))


@local_bound.register
def _(layer: SLLBlock, x: torch.Tensor) -> Bound:
    """With lam = ||T^-1/2 W^T W T^-1/2||: 1 if lam <= 1, else sqrt(1 + 4 lam (lam - 1)), from the proof in SLLBlock."""
    lam = spectral_norm_upper(layer.weight / layer.scale.sqrt()) ** 2
    return _times((1 + 4 * lam * (lam - 1).clamp(min=0)).sqrt() * (1 + 1e-12))


@local_bound.register
def _(layer: ResidualAttention, x: torch.Tensor) -> Bound:
    _needs(layer, x, 3)
    if any(linear.bias is not None for linear in (layer.query, layer.key, layer.value, layer.output)):
        raise BenchmarkError("ResidualAttention has a bias, which its bound leaves out; the certificate is refused")
    return attention_sensitivity(x, *layer.head_weights()).bound


@local_bound.register
def _(layer: LayerProject, x: torch.Tensor) -> Bound:
    _needs(layer, x, 3)
    norms = torch.linalg.vector_norm(x, dim=-1)
    return lambda radius: projection_bound(norms, layer.radius, radius)


def projection_bound(norms: torch.Tensor, ball: float, radius: torch.Tensor) -> torch.Tensor:
    """How far the tokens' projections onto the ball move when the tokens move by at most `radius` together.

    Exact for one token up to radius norm + ball: the radius itself inside the ball; outside, the largest angle
    (e^2 <= r^2 - R^2) or the point of the ball nearest to leaving it. Each token's squared bound is convex in its
    squared budget and 0 at 0, so the worst case spends all on one token: the maximum over tokens.

    Args:
        norms: (n, tokens) norms r of the nominal tokens.
        ball: R.
        radius: (n,) budgets e.

    Returns:
        (n,) upper bounds; never above `radius`.
    """
    r, e = norms.clamp(min=1e-300), radius[:, None].expand_as(norms)
    inner = (1 - (e / r) ** 2).clamp(min=0).sqrt()
    # 2 (1 - inner) = 2 (e/r)^2 / (1 + inner), without cancellation
    by_angle = ball * (e / r) * (2 / (1 + inner)).sqrt()
    by_chord = ((ball / r) * (e**2 - (r - ball) ** 2).clamp(min=0)).sqrt()
    outside = torch.where(e**2 <= r**2 - ball**2, by_angle, by_chord)
    return torch.minimum(torch.where(r <= ball, e, outside).amax(1) * (1 + 1e-12), radius)
