"""Published formulas that are not bounds, computed as printed. They are shown beside a sound number, never in its place.

Functions return an `Unsound`, not a tensor of radii. No stage can run this file: it has no `certify`, and `CertificateSpec`
and `Certificate` refuse its name.

CertViT (Gupta & Verma 2023, sections 3.1 and 3.6, appendix A; formulas missing from its text are Kim et al.'s as printed, or
the released code's). Patch embedding x product over blocks of (1 + attention)(1 + MLP) x head, certified when
margin > sqrt(2) eps L. Errors: LayerNorm counts as 1, though its constant is max|gamma| / sqrt(eps), 316 at eps = 1e-5;
1.12 is below GELU's largest slope 1.12890; attention has ||W_Q,h||^2 in place of the fourth power. The released code
(`released`) has more. For a linear layer it computes something that is not a norm. For a convolution it takes five power
steps on 32x32 images whatever their size, a lower bound. For attention it has sigma_Q + sigma_V, of whole matrices, under the
root. Its eps refers to normalised images; radii here are in pixels, like all others. Swin's windows count as attention on
the tokens of one window without position bias: the paper prints no other formula. `FORMULAS` has both by name, for a row's
`unsound_formulas`.

SpecFormer (Hu et al. 2024, theorem 4.3): wrong where ||X|| + delta < 1, for example at X = 0; elsewhere a sound bound implies
it. Its submission has the sound bound (head_bounds.py). Of the constants of its theorem D.1, (40), L2Former's, is CertViT's
`printed_attention`; (41), LNFormer's, lacks W_V, which multiplies the output; (42), LipsFormer's, is sound
(bounds/scaled_cosine.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from benchmark.certificates.bounds.linear import conv2d_norm_upper
from benchmark.certificates.bounds.spectral import spectral_norm_upper
from benchmark.layers.attention_l2 import L2Attention, ReleasedL2Attention, kim_constant, phi_inverse
from benchmark.layers.attention_window import L2WindowAttention
from benchmark.layers.clipped_relu import ClippedReLU
from benchmark.layers.lipschitz import BoundedLinear, NormalisedHead
from benchmark.layers.normalise import Normalise
from benchmark.layers.residual import Residual
from benchmark.layers.tokens import ClassToken, LayerProject, MeanPool, MergeTokens, Patchify, Positions, TakeToken
from benchmark.runtime.errors import BenchmarkError, near_miss

GELU_AS_PRINTED = 1.12
COUNTED_AS_ONE = (
    nn.LayerNorm, nn.ReLU, ClippedReLU, nn.Flatten, nn.Identity,
    Patchify, MergeTokens, Positions, ClassToken, TakeToken, MeanPool, LayerProject,
)  # fmt: skip


@dataclass(frozen=True)
class Unsound:
    """The value of a published formula that can be exceeded, in place of a Lipschitz constant or of l2 radii in pixels.

    `value` is (n,) or () float64 and certifies nothing; `formula` is its name and source.
    """

    value: torch.Tensor
    formula: str


def certvit_radius(model: nn.Sequential, images: torch.Tensor, labels: torch.Tensor, *, released: bool = False) -> Unsound:
    """Return what CertViT reports as certified: min over rivals of margin / (sqrt(2) L), 0 if the prediction is wrong.

    Args:
        images: (n, c, h, w) in [0, 1].
        labels: (n,) int64.
        released: compute L as in the released code, not as printed.
    """
    constant = certvit_constant(model, images[:1], released=released)
    with torch.no_grad():
        logits = model(images).double()
    margins = (logits.gather(1, labels[:, None]) - logits).scatter(1, labels[:, None], math.inf)
    return Unsound(margins.amin(1).clamp(min=0) / (math.sqrt(2) * constant.value), constant.formula)


def certvit_constant(model: nn.Module, x: torch.Tensor, *, released: bool = False) -> Unsound:
    """Return the published network expression on inputs of the shape of x (n, *shape).

    Raises:
        BenchmarkError: the expression does not cover a named layer.
    """
    with torch.no_grad():
        value = _expression(model, x, released)
    source = "as its released code computes it" if released else "as printed"
    return Unsound(torch.tensor(value, dtype=torch.float64), f"CertViT (Gupta & Verma 2023), {source}")


def _expression(layer: nn.Module, x: torch.Tensor, released: bool) -> float:
    if isinstance(layer, nn.Sequential):
        total = 1.0
        for part in layer:
            total *= _expression(part, x, released)
            x = part(x)
        return total
    if isinstance(layer, Residual):
        return 1 + _expression(layer.body, x, released)
    if isinstance(layer, L2Attention | ReleasedL2Attention):
        return _released_attention(layer, x.shape[1] - 1) if released else printed_attention(layer, x.shape[1])
    if isinstance(layer, L2WindowAttention):
        attention = _released_attention if released else printed_attention
        return attention(layer.content, layer.window**2)
    if isinstance(layer, nn.Linear | BoundedLinear | NormalisedHead):
        return _sigma(layer.weight, released)
    if isinstance(layer, nn.Conv2d):
        if layer.stride == layer.kernel_size:
            return _sigma(layer.weight.flatten(1), released)
        return _released_convolution(layer) if released else float(conv2d_norm_upper(layer, layer.weight, *x.shape[2:]))
    if isinstance(layer, nn.GELU):
        return GELU_AS_PRINTED
    if isinstance(layer, Normalise):
        return 1 / layer.std
    if isinstance(layer, COUNTED_AS_ONE):
        return 1.0
    raise BenchmarkError(f"CertViT's expression does not know the layer {type(layer).__name__}")


def printed_attention(layer: L2Attention, tokens: int) -> float:
    """Return sqrt(N) / sqrt(D/H) (4 phi^-1(N-1) + 1) sqrt(sum_h ||W_Q,h||^2 ||W_V,h||^2) ||W_O||, the square as printed."""
    query, value, output = layer.head_weights()
    products = spectral_norm_upper(query) ** 2 * spectral_norm_upper(value) ** 2
    root = float(products.sum().sqrt()) * float(spectral_norm_upper(output.flatten(0, 1)))
    return kim_constant(tokens) / math.sqrt(query.shape[2]) * root


def _released_attention(layer: L2Attention, patches: int) -> float:
    """Return sqrt(N / (D/H)) (4 W(N / e) + 1) sqrt(sigma_Q + sigma_V) sigma_O, N the patches without the class token."""
    inner = layer.query.weight.shape[0] / layer.heads
    query, value, output = (_sigma(part.weight, True) for part in (layer.query, layer.value, layer.output))
    # W(N / e) is phi^-1(N)
    return math.sqrt(patches / inner) * (4 * phi_inverse(patches) + 1) * math.sqrt(query + value) * output


def _sigma(weight: torch.Tensor, released: bool) -> float:
    """Return the spectral norm or, if `released`, sqrt(|sum of W x| / |sum of x|), which is not a norm.

    x is taken after four power steps from a positive start, drawn from the normal truncated to [0.5, 1].
    """
    if not released:
        return float(spectral_norm_upper(weight))
    weight = weight.detach().double()
    uniform = torch.rand(weight.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    low, high = (torch.special.ndtr(torch.tensor(end, dtype=torch.float64)) for end in (0.5, 1.0))
    x = torch.special.ndtri(low + (high - low) * uniform).to(weight.device)
    for _ in range(4):
        x = weight.mT @ (weight @ (x / x.norm()))
    x = x / x.norm()
    return math.sqrt(float((weight @ x).sum().abs()) / (float(x.sum().abs()) + 1e-9))


def _released_convolution(layer: nn.Conv2d) -> float:
    """Return ||W x|| / ||x|| after five power steps on a 32x32 image from a positive start."""
    weight = layer.weight.detach().double()
    generator = torch.Generator().manual_seed(0)
    x = 0.5 + 0.5 * torch.rand(1, layer.in_channels, 32, 32, dtype=torch.float64, generator=generator).to(weight.device)
    stride, padding = layer.stride, tuple(int(p) for p in layer.padding)
    for _ in range(5):
        y = nn.functional.conv2d(x / x.norm(), weight, None, stride, padding)
        x = nn.functional.conv_transpose2d(y, weight, None, stride, padding)
    return float(nn.functional.conv2d(x, weight, None, stride, padding).norm() / x.norm())


def specformer_constant(x: torch.Tensor, w_q: torch.Tensor, w_k: torch.Tensor, w_v: torch.Tensor, delta: float) -> Unsound:
    """Return N (N+1) (||X||_F + delta)^2 [||W_V|| ||W_Q|| ||W_K|| + ||W_V||] of one attention head around X.

    Args:
        x: (n, tokens, d).
        w_q, w_k, w_v: (d, d_head), acting on rows.
        delta: radius of the ball around X, l2 in token space.
    """
    query, key, value = (float(spectral_norm_upper(weight)) for weight in (w_q, w_k, w_v))
    tokens, size = x.shape[1], torch.linalg.vector_norm(x.double(), dim=(1, 2))
    return Unsound(
        tokens * (tokens + 1) * (size + delta) ** 2 * (value * query * key + value),
        "SpecFormer (Hu et al. 2024), theorem 4.3",
    )


FORMULAS: dict[str, Callable[[nn.Sequential, torch.Tensor, torch.Tensor], Unsound]] = {
    "certvit": certvit_radius,
    "certvit_released": partial(certvit_radius, released=True),
}


def unsound_radius(name: str, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Unsound:
    """Return a formula's radii. Raise a BenchmarkError if there is no such formula, or it does not cover a layer."""
    if name not in FORMULAS:
        raise BenchmarkError(f"no published formula {name!r}{near_miss(name, FORMULAS)}")
    if not isinstance(model, nn.Sequential):
        raise BenchmarkError("the published formulas need a plain nn.Sequential")
    return FORMULAS[name](model, images, labels)
