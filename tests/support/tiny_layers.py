"""Small layers that have a bound, linear and curved, in float64 with random weights; and a small ViT of them."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import torch
from torch import nn

from benchmark.certificates.bounds.layer_bound import exact_layer_bound
from benchmark.layers.attention import ResidualAttention, SelfAttention
from benchmark.layers.attention_grid import GridAttention
from benchmark.layers.attention_l2 import L2Attention
from benchmark.layers.attention_window import L2WindowAttention
from benchmark.layers.clipped_relu import ClippedReLU
from benchmark.layers.competitive_attention import CompetitiveAttention, ConeAttention, MaxMinTokens
from benchmark.layers.isometries import Absolute, ShiftTokens
from benchmark.layers.lipschitz import BoundedLinear, NormalisedHead, SLLBlock, SmoothSLLBlock
from benchmark.layers.normalise import Normalise
from benchmark.layers.residual import Residual, WeightedResidual
from benchmark.layers.resize import Resize
from benchmark.layers.scaled_cosine import CenterNorm, ScaledCosineAttention
from benchmark.layers.token_convolution import BoundedTokenConvolution, TokenConvolution
from benchmark.layers.tokens import ClassToken, LayerProject, MeanPool, MergeTokens, Patchify, Positions, TakeToken


class Doubled(nn.Linear):
    """A layer that nothing is known of."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


LINEAR = [
    (nn.Linear(5, 3), (5,)),
    (nn.Linear(6, 6), (3, 6)),
    (nn.Conv2d(2, 3, 3, padding=1), (2, 6, 5)),
    (nn.Conv2d(2, 4, 2, stride=2), (2, 6, 4)),
    (nn.Conv2d(4, 4, 3, padding=1, groups=2), (4, 5, 5)),
    (nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (2, 5, 6)),
    (nn.Conv2d(2, 3, 3, padding="same", stride=1), (2, 5, 6)),
    (nn.Flatten(), (3, 4)),
    (nn.Identity(), (3,)),
    (ClassToken(4), (3, 4)),
    (TakeToken(), (3, 4)),
    (MeanPool(), (3, 4)),
    (Patchify(2), (1, 4, 4)),
    (MergeTokens(4), (16, 3)),
    (Positions(3, 4), (3, 4)),
    (Normalise(0.5, 0.25), (1, 2, 2)),
    (BoundedLinear(4, 6, norm=2.0), (3, 4)),
    (TokenConvolution(4, (3,)), (5, 4)),
    (TokenConvolution(6, (1, 5, 3)), (2, 6)),
    (BoundedTokenConvolution(4, (3, 3), norm=0.5), (5, 4)),
    (Residual(TokenConvolution(4, (3, 5))), (4, 4)),
    (Residual(nn.Sequential(BoundedTokenConvolution(4, (3, 5)), nn.Linear(4, 4))), (4, 4)),
    (Resize(6), (2, 3, 3)),
    (CenterNorm(4), (3, 4)),
    (CenterNorm(2), (2,)),
    (ShiftTokens(2, 1), (4, 4)),
]


def built(layer: nn.Module, seed: int = 0) -> nn.Module:
    """The layer in float64 with random weights of size 1."""
    layer = layer.double().eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for parameter in layer.parameters():
        width = parameter.shape[-1] if parameter.ndim > 1 else 1
        parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / math.sqrt(width))
    return layer


def strayed(single: nn.Module, x: torch.Tensor, moved: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield how far a float32 layer is from its float64 copy, and what the bound around float32 x claims: (n,) each.

    First at x, then at `moved`.
    """
    exact, delta = copy.deepcopy(single).double(), (moved.double() - x.double()).flatten(1).norm(dim=1)
    bound = exact_layer_bound(exact, x.double())
    for at, budget in ((x, torch.zeros_like(delta)), (moved, delta)):
        gap = (single(at).double() - exact(at.double())).flatten(1).norm(dim=1)
        yield gap, bound.rounding_in_range(budget)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4))


CURVED = {
    "relu": (nn.ReLU(), (3, 4)),
    "relu on images": (nn.ReLU(), (2, 3, 3)),
    "leaky": (nn.LeakyReLU(0.2), (3, 4)),
    "leaky up": (nn.LeakyReLU(-0.5), (7,)),
    "gelu": (nn.GELU(), (3, 4)),
    "gelu on vectors": (nn.GELU(), (9,)),
    "gelu, tanh form": (nn.GELU("tanh"), (3, 4)),
    "tanh": (nn.Tanh(), (3, 4)),
    "sigmoid": (nn.Sigmoid(), (3, 4)),
    "softplus": (nn.Softplus(beta=2.0), (3, 4)),
    "softplus cut": (nn.Softplus(beta=3.0, threshold=1.0), (3, 4)),
    "clipped relu": (ClippedReLU((3, 4)), (3, 4)),
    "absolute": (Absolute(2), (3, 4)),
    "projection": (LayerProject(1.0), (3, 4)),
    "sll": (SLLBlock(4, 6), (3, 4)),
    "smooth sll": (SmoothSLLBlock(4, 6, bend=0.5), (3, 4)),
    "smooth sll, narrow bend": (SmoothSLLBlock(4, 6, bend=0.01), (3, 4)),
    "smooth sll, wide bend": (SmoothSLLBlock(4, 6, bend=5.0), (3, 4)),
    "layernorm": (nn.LayerNorm(4), (3, 4)),
    "layernorm plain": (nn.LayerNorm(5, eps=0.1, elementwise_affine=False), (5,)),
    "layernorm of two axes": (nn.LayerNorm((2, 3)), (4, 2, 3)),
    "l2 attention": (L2Attention(4, 2), (3, 4)),
    "l2 attention, one head": (L2Attention(4, 1), (5, 4)),
    "l2 attention, one token": (L2Attention(4, 4), (1, 4)),
    "l2 windows": (L2WindowAttention(4, 2, side=4, window=2), (16, 4)),
    "l2 windows, shifted": (L2WindowAttention(4, 2, side=4, window=2, shift=1), (16, 4)),
    "l2 windows of one token": (L2WindowAttention(4, 1, side=2, window=1), (4, 4)),
    "self-attention": (SelfAttention(4, 2), (3, 4)),
    "self-attention, no bias": (SelfAttention(4, 1, qkv_bias=False), (5, 4)),
    "self-attention, own scale": (SelfAttention(6, 2, scale=2.0), (3, 6)),
    "self-attention, one token": (SelfAttention(4, 4), (1, 4)),
    "bounded attention": (ResidualAttention(4, 2, qk_norm=2.0, vo_norm=0.5), (3, 4)),
    "grid attention": (GridAttention(4, 2, inner=1, side=2, content=0.5), (4, 4)),
    "competition": (CompetitiveAttention(14, 2, side=2, window=3, budget=0.5), (4, 14)),
    "competition of all": (CompetitiveAttention(8, 1, side=2, window=4), (4, 8)),
    "cone": (ConeAttention(7, 1, side=2, window=3), (4, 7)),
    "max and min of tokens": (MaxMinTokens(2, 3), (4, 7)),
    "scaled cosine": (ScaledCosineAttention(4, 2, eps=0.1), (3, 4)),
    "scaled cosine, one head": (ScaledCosineAttention(4, 1, eps=1.0), (5, 4)),
    "scaled cosine, one token": (ScaledCosineAttention(4, 4, eps=0.01), (1, 4)),
    "residual": (Residual(mlp()), (3, 4)),
    "residual self-attention": (Residual(nn.Sequential(nn.LayerNorm(4), SelfAttention(4, 2))), (3, 4)),
    "weighted residual": (WeightedResidual(mlp(), 4), (3, 4)),
    "lipsformer": (WeightedResidual(nn.Sequential(CenterNorm(4), ScaledCosineAttention(4, 2, eps=0.3)), 4), (3, 4)),
    "residual attention": (Residual(nn.Sequential(nn.LayerNorm(4), L2Attention(4, 2))), (3, 4)),
    "nested": (nn.Sequential(Residual(mlp()), nn.Sequential(nn.Tanh(), nn.Linear(4, 3))), (2, 4)),
}


def vit(seed: int, norm: nn.Module) -> nn.Sequential:
    torch.manual_seed(seed)
    tokens = (Normalise(), Patchify(2), nn.Linear(4, 8), ClassToken(8), Positions(5, 8))
    attention = Residual(nn.Sequential(norm, L2Attention(8, 2)))
    feed_forward = Residual(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)))
    model = nn.Sequential(*tokens, attention, feed_forward, TakeToken(), NormalisedHead(8, 3))
    return model.eval().requires_grad_(False)
