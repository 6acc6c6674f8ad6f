"""Certified l2 radii from one global Lipschitz constant: margins over constant times head (Tsuzuku et al. 2018).

A network of known layers, by exact type, has at most the product of their constants; a residual 1 + the body's. Where
the last layer is linear with rows w_j, the margin over rival j falls by at most ||w_y - w_j|| L ||xi||, L the constant of
what stands before it; otherwise by sqrt(2) L ||xi||, L the whole network's. Nothing here depends on the image, so a local
certificate (local.py) gives more; this one holds for layers that have no other, and shows what global bounds cost.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from functools import singledispatch

import torch
from torch import nn

from benchmark.certificates.l2_attention import l2_attention_norm_upper
from benchmark.certificates.local import FLOAT32_ALLOWANCE, float32_gap, refuse_hooks
from benchmark.certificates.steps import UP, Step, exact_step
from benchmark.errors import BenchmarkError
from benchmark.layers.attention import ResidualAttention
from benchmark.layers.attention_l2 import L2Attention, ReleasedL2Attention
from benchmark.layers.lipschitz import BoundedLinear, NormalisedHead, SLLBlock
from benchmark.layers.residual import Residual
from benchmark.layers.tokens import LayerProject

__all__ = ["certify", "float32_gap", "guarantee", "lipschitz_constant"]

HEADS = (NormalisedHead, nn.Linear, BoundedLinear)
GELU_SLOPE = {
    "none": 1.1289042,
    "tanh": 1.1289931,
}  # largest |slope|, rounded up; the first is Phi(2^.5) + 2^.5 phi(2^.5)


def guarantee() -> str:
    return (
        "For every image with certified radius r > 0, the prediction equals the label for every image within l2 "
        "distance r (pixels in [0, 1]). Deterministic, from one global Lipschitz constant, proven for the network in real "
        f"arithmetic with every margin lowered by {FLOAT32_ALLOWANCE:g}. That this covers the rounding of the float32 "
        "network is measured on the clean images (the largest difference found must stay below a tenth of it), not proven."
    )


def certify(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, *, largest: float = 8.0) -> torch.Tensor:
    """Certified l2 radius of each image; 0 where the prediction is wrong or tied.

    Args:
        model: a plain `nn.Sequential` of layers with a known constant.
        images: (n, c, h, w) in [0, 1].
        labels: (n,) int64.
        largest: no radius is above this, in pixels.

    Returns:
        (n,) float64 radii.

    Raises:
        BenchmarkError: a layer without a global constant (named), or a model that is no such sequence.
    """
    if type(model) is not nn.Sequential or not len(model):
        raise BenchmarkError("the Lipschitz certificate needs a plain nn.Sequential")
    refuse_hooks(model)
    model = copy.deepcopy(model).double().eval().requires_grad_(False)
    with torch.no_grad():
        logits = model(images.double())
        if logits.ndim != 2:
            raise BenchmarkError(f"the network should give one row of logits an image; it gives {tuple(logits.shape)}")
        constants = _rival_constants(model, images[:1].double(), logits.shape[1])[labels]
    room = logits.gather(1, labels[:, None]) - logits - FLOAT32_ALLOWANCE
    radii = torch.where(room > 0, room / constants, 0.0)  # a rival that cannot come nearer: infinity
    radii = radii.scatter(1, labels[:, None], math.inf).amin(1)
    return (radii * (1 - 1e-12)).clamp(max=largest)


def _rival_constants(model: nn.Sequential, x: torch.Tensor, classes: int) -> torch.Tensor:
    """At [y, j]: how fast, in l2 of the image, the margin of y over j can fall. (classes, classes)."""
    head = model[-1]
    if isinstance(head, HEADS) and type(head) in HEADS:
        features = model[:-1](x)
        if features.ndim != 2:
            raise BenchmarkError(
                f"the head needs one vector an image; the layer before it gives {tuple(features.shape)}"
            )
        weight = head.weight
        distances = torch.linalg.vector_norm(weight[:, None] - weight[None], dim=-1) * UP
        return distances * lipschitz_constant(model[:-1], x) * UP
    both = math.sqrt(2) * UP * lipschitz_constant(model, x)
    return torch.full((classes, classes), both, dtype=torch.float64, device=x.device)


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
    only = exact_step(layer, x)
    if type(only) is not Step:
        raise BenchmarkError(f"no global Lipschitz constant is known for the layer {type(layer).__name__}")
    return float(torch.as_tensor(only.gain, dtype=torch.float64).max())  # a linear layer


@singledispatch
def constant(layer: nn.Module, x: torch.Tensor) -> float:
    """The constant of a layer that is not linear; see `lipschitz_constant`."""
    raise BenchmarkError(f"no global Lipschitz constant is known for the layer {type(layer).__name__}")


@constant.register
def _(layer: nn.Sequential, x: torch.Tensor) -> float:
    return _product(layer, x)


def _product(layers: Iterable[nn.Module], x: torch.Tensor) -> float:
    total = 1.0
    for layer in layers:
        total *= lipschitz_constant(layer, x) * UP
        x = layer(x)
    return total


@constant.register
def _(layer: Residual, x: torch.Tensor) -> float:
    return (1 + lipschitz_constant(layer.body, x)) * UP


@constant.register
def _(layer: L2Attention, x: torch.Tensor) -> float:
    if x.ndim != 3:
        raise BenchmarkError(f"L2Attention needs 3 axes; it is given shape {tuple(x.shape)}")
    if any(linear.bias is not None for linear in (layer.query, layer.value, layer.output)):
        raise BenchmarkError("L2Attention has a bias, which its bound leaves out; the certificate is refused")
    return l2_attention_norm_upper(layer, x.shape[1])


@constant.register(ReleasedL2Attention)
def _(layer: nn.Module, x: torch.Tensor) -> float:
    raise BenchmarkError("L2 attention without A_h (CertViT's released code) is not Lipschitz; use L2Attention")


@constant.register(ResidualAttention)
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
@constant.register(LayerProject)  # projection onto a convex set
def _(layer: nn.Module, x: torch.Tensor) -> float:
    return 1.0


@constant.register
def _(layer: SLLBlock, x: torch.Tensor) -> float:
    return float(exact_step(layer, x).gain)
