"""Certified l2 radii from one global Lipschitz constant: margins over constant times head (Tsuzuku et al. 2018).

A network of known layers, by exact type, has at most the product of their constants; a residual 1 + the body's, but less
where the body is a token convolution (bounds/token_convolution.py). With D_k the move of layer k's input, ||D_0|| <= radius,
||D_(k+1)|| <= L_k ||D_k|| + t_k, t_k the rounding of the layer as float32 runs it (rounding.py). Where the last layer is
linear with rows w_j, the margin over rival j falls by at most ||w_y - w_j|| ||D_K|| and the rounding of its two logits;
otherwise by sqrt(2) times the move of the output.

The constants do not depend on the image, so a local certificate (local.py) gives more; this one shows what global bounds
cost.

`lipschitz_constant` bounds a single layer. The constant of a linear layer is the norm of its `LayerBound`, and attention's
constants have files of their own. A layer whose constant is not finite, or not known, is refused with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, singledispatch

import torch
from torch import nn

from benchmark.certificates.bounds.checked_copy import rebuilt
from benchmark.certificates.bounds.dispatch import exact_layer_bound, unbiased
from benchmark.certificates.bounds.l2_attention_norm import l2_attention_norm_upper
from benchmark.certificates.bounds.l2_window_norm import checked_window, l2_window_norm_upper
from benchmark.certificates.bounds.layer_bound import UP, LayerBound
from benchmark.certificates.bounds.rounding import FLOAT64, LARGEST, TINY, UNIT32, gamma, size
from benchmark.certificates.bounds.scaled_cosine_norm import scaled_cosine_norm_upper
from benchmark.certificates.bounds.token_convolution import convolution_residual
from benchmark.certificates.local import MANY, _largest, above, checked_gap
from benchmark.layers.attention import LipschitzNormAttention, ResidualAttention, SelfAttention
from benchmark.layers.attention_l2 import L2Attention, ReleasedL2Attention
from benchmark.layers.attention_window import DotProductWindowAttention, L2WindowAttention
from benchmark.layers.clipped_relu import ClippedReLU
from benchmark.layers.kinds import GELU_SLOPE as GELU_SLOPE
from benchmark.layers.lipschitz import BoundedLinear, NormalisedHead, SLLBlock, SmoothSLLBlock
from benchmark.layers.residual import Residual, WeightedResidual
from benchmark.layers.scaled_cosine import ScaledCosineAttention
from benchmark.layers.tokens import LayerProject
from benchmark.runtime.errors import BenchmarkError


def lipschitz_constant(layer: nn.Module, x: torch.Tensor) -> float:
    """An upper bound of the l2 Lipschitz constant of `layer` on all inputs of the shape of x.

    Guarantee: never below the true constant, in real arithmetic.

    Args:
        layer: one layer, or a plain nn.Sequential of them; float64.
        x: one input or more, (n, *shape) float64; its shape alone counts.

    Raises:
        BenchmarkError: no global constant is known for it, with its name.
    """
    if type(layer) in constant.registry:  # a subclass may compute something else
        return constant(layer, x)
    only = exact_layer_bound(layer, x)
    if type(only) is not LayerBound:
        raise BenchmarkError(f"no global Lipschitz constant is known for the layer {type(layer).__name__}")
    return float(torch.as_tensor(only.jacobian_norm, dtype=torch.float64).max())  # a linear layer


@singledispatch
def constant(layer: nn.Module, x: torch.Tensor) -> float:
    """The constant of a layer that is not linear; see `lipschitz_constant`."""
    raise BenchmarkError(f"no global Lipschitz constant is known for the layer {type(layer).__name__}")


@constant.register
def _(layer: nn.Sequential, x: torch.Tensor) -> float:
    total = 1.0
    for part in layer:
        total *= lipschitz_constant(part, x) * UP
        x = part(x)
    return total


@constant.register
def _(layer: Residual, x: torch.Tensor) -> float:
    if (linear := convolution_residual(layer, x)) is not None:
        return float(linear.jacobian_norm)
    return (1 + lipschitz_constant(layer.body, x)) * UP


@constant.register
def _(layer: WeightedResidual, x: torch.Tensor) -> float:
    exact_layer_bound(layer, x)  # refuses weights that do not fit
    return (1 + float(layer.alpha.abs().max()) * lipschitz_constant(layer.body, x)) * UP


@constant.register
def _(layer: ScaledCosineAttention, x: torch.Tensor) -> float:
    exact_layer_bound(layer, x)  # refuses biases and other shapes
    return scaled_cosine_norm_upper(layer, x.shape[1])


@constant.register(LipschitzNormAttention)
def _(layer: nn.Module, x: torch.Tensor) -> float:
    raise BenchmarkError(
        "no sound constant is known for LipschitzNormAttention: the published one lacks W_V (unsound_paper_formula.py)"
    )


@constant.register
def _(layer: L2Attention, x: torch.Tensor) -> float:
    if x.ndim != 3:
        raise BenchmarkError(f"L2Attention needs 3 axes; it is given shape {tuple(x.shape)}")
    unbiased(layer, layer.query, layer.value, layer.output)
    return l2_attention_norm_upper(layer, x.shape[1])


@constant.register
def _(layer: L2WindowAttention, x: torch.Tensor) -> float:
    checked_window(layer, x)
    return l2_window_norm_upper(layer)


@constant.register(ReleasedL2Attention)
def _(layer: nn.Module, x: torch.Tensor) -> float:
    raise BenchmarkError("L2 attention without A_h (CertViT's released code) is not Lipschitz; use L2Attention")


@constant.register(ResidualAttention)
@constant.register(SelfAttention)
@constant.register(DotProductWindowAttention)
@constant.register(nn.MultiheadAttention)
def _(layer: nn.Module, x: torch.Tensor) -> float:
    raise BenchmarkError(
        f"{type(layer).__name__} is dot-product attention, which has no global Lipschitz constant (Kim et al. 2021); "
        "use a local certificate, or L2Attention"
    )


@constant.register
def _(layer: nn.LayerNorm, x: torch.Tensor) -> float:
    """z / sqrt(|z|^2 / d + eps), z centred, has a Jacobian of eigenvalues at most 1 / sqrt(|z|^2 / d + eps)."""
    if not layer.eps > 0:
        raise BenchmarkError(f"LayerNorm with eps {layer.eps} has no global Lipschitz constant; eps should be positive")
    gamma = 1.0 if layer.weight is None else float(layer.weight.abs().max())
    return gamma / math.sqrt(layer.eps) * UP


@constant.register
def _(layer: nn.GELU, x: torch.Tensor) -> float:
    return GELU_SLOPE[layer.approximate]


@constant.register(nn.ReLU)
@constant.register(ClippedReLU)
@constant.register(LayerProject)  # projection onto a convex set
def _(layer: nn.Module, x: torch.Tensor) -> float:
    return 1.0


@constant.register(SLLBlock)
@constant.register(SmoothSLLBlock)
def _(layer: SLLBlock, x: torch.Tensor) -> float:
    return float(exact_layer_bound(layer, x).jacobian_norm)


HEADS = (NormalisedHead, nn.Linear, BoundedLinear)
Move = Callable[[torch.Tensor], torch.Tensor]  # of a bound (n,) of an input's move, the bound of the output's


def guarantee() -> str:
    return (
        "For every image with certified radius r > 0, the float32 network's prediction equals the label for every image "
        "within l2 distance r (pixels in [0, 1]). Deterministic, from one global Lipschitz constant. Rounding is covered by "
        "a-priori error analysis: any order of summation, no reduced-precision products."
    )


@torch.no_grad()
def certify(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, *, largest: float = 8.0, precision: float = 1e-6
) -> torch.Tensor:
    """Certified l2 radius of each image; 0 where the prediction is wrong or tied.

    Args:
        model: a plain `nn.Sequential` of layers with a known constant.
        images: (n, c, h, w) in [0, 1].
        labels: (n,) int64.
        largest: no radius is above this, in pixels.
        precision: relative, of what the constant gives.

    Returns:
        (n,) float64 radii.

    Raises:
        BenchmarkError: a layer without a global constant (named), a model that is no such sequence, TF32 products.
    """
    network, radii = _checked_copy(model), []
    for x, y in zip(images.split(MANY), labels.split(MANY), strict=True):
        margins, margin_drop = _margins(network, x.double(), y)
        rival_margins = margins.scatter(1, y[:, None], math.inf)
        zero = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        radii.append(_largest(above(rival_margins, margin_drop), zero, largest, precision).clamp(max=largest))
    return torch.cat(radii)


@torch.no_grad()
def float32_gap(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """The largest difference of a margin between the float32 network and its float64 copy on these images, and the largest
    that the error analysis allows.

    Raises:
        BenchmarkError: a difference is above its own bound, so the analysis does not describe this machine; or the model
            computes something else than the network that its layers describe, of which certificates speak.
    """
    network = _checked_copy(model)

    def bounded(x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        margins, margin_drop = _margins(network, x.double(), labels)
        return margins, margin_drop(torch.zeros(len(x), dtype=torch.float64, device=x.device))

    return checked_gap(model, images, labels, bounded)


def _checked_copy(model: nn.Module) -> nn.Sequential:
    if type(model) is not nn.Sequential or not len(model):
        raise BenchmarkError("the Lipschitz certificate needs a plain nn.Sequential")
    network = rebuilt(model).double()
    assert isinstance(network, nn.Sequential)
    return network


def _margins(model: nn.Sequential, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, Move]:
    """logit_y - logit_j (n, classes), and how far each can fall within a radius (n,) in the float32 network."""
    head = model[-1]
    if isinstance(head, HEADS) and type(head) in HEADS:
        move, features = _move(model[:-1], x), model[:-1](x)
        if type(head) is BoundedLinear:
            exact_layer_bound(head, features)  # refuses a norm for which float32 could overflow
        margins = _margins_of(head(features), labels)
        return margins, partial(_head_margin_drop, head.weight, head.bias, labels, move, size(features))
    move, margins = _move(model, x), _margins_of(model(x), labels)
    return margins, lambda radius: (math.sqrt(2) * UP * move(radius))[:, None].expand_as(margins)


def _margins_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if logits.ndim != 2:
        raise BenchmarkError(f"the network should give one row of logits an image; it gives {tuple(logits.shape)}")
    return logits.gather(1, labels[:, None]) - logits


def _head_margin_drop(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    move: Move,
    nominal: torch.Tensor,
    radius: torch.Tensor,
) -> torch.Tensor:
    """||w_y - w_j|| ||D_K|| and the rounding of both logits, each gamma(width + 3) (||w|| ||x + D_K|| + |b|)."""
    rivals = torch.linalg.vector_norm(weight[labels][:, None] - weight[None], dim=-1) * UP
    norms, moved = torch.linalg.vector_norm(weight, dim=-1), move(radius)[:, None]
    terms = norms * (nominal[:, None] + moved) + (0.0 if bias is None else bias.abs())
    terms = terms + terms.gather(1, labels[:, None])
    margin_drop = (rivals * moved + gamma(weight.shape[1] + 3) * terms * FLOAT64 + TINY) * UP
    return torch.where(nominal[:, None] + moved <= LARGEST, margin_drop, torch.inf)


def _move(layer: nn.Module, x: torch.Tensor) -> Move:
    """How far the output of `layer`, as float32 runs it, moves from its nominal output around x (n, *shape)."""
    if type(layer) is nn.Sequential:
        parts = []
        for part in layer:
            parts.append(_move(part, x))
            x = part(x)

        def through(delta: torch.Tensor) -> torch.Tensor:
            for part in parts:
                delta = part(delta)
            return delta

        return through
    if type(layer) is Residual and convolution_residual(layer, x) is None:
        body, nominal = _move(layer.body, x), size(x) + size(layer.body(x))

        def both(delta: torch.Tensor) -> torch.Tensor:
            whole = delta + body(delta)
            return (whole + UNIT32 * (nominal + whole) * FLOAT64 + TINY) * UP

        return both
    if type(layer) is WeightedResidual:
        return _weighted_move(layer, x)
    most, layer_bound = lipschitz_constant(layer, x), exact_layer_bound(layer, x)
    return lambda delta: (most * delta + layer_bound.rounding_in_range(delta)) * UP


def _weighted_move(layer: WeightedResidual, x: torch.Tensor) -> Move:
    """As of a residual, the product with alpha rounded too."""
    exact_layer_bound(layer, x)  # refuses weights that do not fit
    body, most = _move(layer.body, x), layer.alpha.abs().max()
    nominal = size(x) + 2 * most * size(layer.body(x))

    def both(delta: torch.Tensor) -> torch.Tensor:
        branch = most * body(delta)
        return (delta + branch + gamma(2) * (nominal + delta + 2 * branch) * FLOAT64 + TINY) * UP

    return both
