"""SpecFormer and its baselines (Hu, Zheng, Wang, Leung, Wu and Xie, "SpecFormer: Guarding Vision Transformer Robustness
via Maximum Singular Value Penalization", 2024).

One pre-norm vision transformer on three backbones with four kinds of attention. SpecFormer itself is the plain one; what
makes it SpecFormer is the penalty `msvp` in its training (benchmark/training/penalties). What differs from the paper stands
in README.md.
"""

from __future__ import annotations

from torch import nn

from benchmark.layers.attention import LipschitzNormAttention, SelfAttention
from benchmark.layers.attention_l2 import L2Attention
from benchmark.layers.lipschitz import NormalisedHead
from benchmark.layers.normalise import Normalise
from benchmark.layers.residual import Residual, WeightedResidual
from benchmark.layers.scaled_cosine import CenterNorm, ScaledCosineAttention, start_at_norm_one
from benchmark.layers.tokens import ClassToken, MeanPool, Patchify, Positions, TakeToken
from benchmark.specs.data import DataSpec

from .gated import GatedAttention

ATTENTION = ("dot_product", "l2", "lipschitz_norm", "scaled_cosine")
BACKBONES = ("vit", "deit", "convit")
POOLING = ("class", "mean")


def build(
    data: DataSpec,
    *,
    patch_size: int,
    width: int,
    depth: int,
    heads: int,
    attention: str = "dot_product",
    backbone: str = "vit",
    mlp_ratio: float = 4.0,
    gated: int = 0,
    pooling: str = "class",
    norm_eps: float = 1e-6,
    cosine_eps: float = 0.1,
    residual_weight: float = 0.2,
    normalised_head: bool = False,
) -> nn.Sequential:
    """Images (n, c, h, w) in [0, 1] to logits (n, classes), as a sequence that certificates can read.

    Args:
        attention: "dot_product"; "l2" (L2Former); "lipschitz_norm" (LNFormer); "scaled_cosine" (LipsFormer, which also has
            CenterNorm for LayerNorm, weighted residuals and weights that start with norm 1).
        backbone: "vit", without biases of queries, keys and values and with scores over the root of the whole width, as
            the authors' ViT-S has them; "deit", with both as usual; "convit", without biases, its first layers gated.
        mlp_ratio: neurons of the MLP over the width.
        gated: layers of "convit" whose attention is gated by positions; a class token joins after them.
        pooling: "class" token, or "mean" of the patches without one.
        norm_eps: of LayerNorm; timm's is 1e-6.
        cosine_eps: of scaled cosine attention, which the paper does not state.
        residual_weight: at which LipsFormer's residual weights start.
        normalised_head: a head with rows of norm 1, and no norm before it: for certificates.

    Raises:
        ValueError: patches do not tile the image, heads do not divide the width, or an option is none of those named.
    """
    _one_of(attention, "attention", ATTENTION)
    _one_of(backbone, "backbone", BACKBONES)
    _one_of(pooling, "pooling", POOLING)
    channels, height, side = data.shape
    if height != side or side % patch_size:
        raise ValueError(f"patch_size {patch_size} does not tile {height}x{side} images")
    if not (0 < gated < depth if backbone == "convit" else gated == 0):
        raise ValueError(f"gated {gated}: convit gates between 1 and depth - 1 layers, other backbones none")
    row = side // patch_size
    blocks = _Blocks(attention, backbone, width, heads, int(width * mlp_ratio), norm_eps, cosine_eps, residual_weight)
    token = [ClassToken(width)] if pooling == "class" else []
    layers: list[nn.Module] = [Normalise(), Patchify(patch_size), nn.Linear(channels * patch_size**2, width)]
    if gated:
        layers += [Positions(row**2, width), *blocks(gated, row), *token, *blocks(depth - gated, 0)]
    else:
        layers += [*token, Positions(row**2 + len(token), width), *blocks(depth, 0)]
    pool = TakeToken() if pooling == "class" else MeanPool()
    if normalised_head:
        return nn.Sequential(*layers, pool, NormalisedHead(width, data.classes))
    return nn.Sequential(*layers, blocks.norm(), pool, nn.Linear(width, data.classes))


class _Blocks:
    """Makes encoder blocks: attention in a residual, then the MLP in another."""

    def __init__(
        self,
        attention: str,
        backbone: str,
        width: int,
        heads: int,
        hidden: int,
        norm_eps: float,
        cosine_eps: float,
        residual_weight: float,
    ) -> None:
        self.kind, self.backbone, self.width, self.heads, self.hidden = attention, backbone, width, heads, hidden
        self.norm_eps, self.cosine_eps, self.residual_weight = norm_eps, cosine_eps, residual_weight

    def __call__(self, count: int, side: int) -> list[nn.Module]:
        """`count` blocks, gated by the places of side x side patches unless `side` is 0."""
        made: list[nn.Module] = []
        for _ in range(count):
            attention = self.attention()
            mixer = GatedAttention(attention, self.heads, side) if side else attention
            made += [self.residual(nn.Sequential(self.norm(), mixer)), self.residual(self.mlp())]
        return made

    def attention(self) -> nn.Module:
        width, heads = self.width, self.heads
        if self.kind == "l2":
            return _started(L2Attention(width, heads))
        if self.kind == "lipschitz_norm":
            return LipschitzNormAttention(width, heads)
        if self.kind == "scaled_cosine":
            return ScaledCosineAttention(width, heads, eps=self.cosine_eps)
        scale = width**-0.5 if self.backbone == "vit" else 0.0
        return SelfAttention(width, heads, qkv_bias=self.backbone == "deit", scale=scale)

    def norm(self) -> nn.Module:
        return CenterNorm(self.width) if self.kind == "scaled_cosine" else nn.LayerNorm(self.width, eps=self.norm_eps)

    def mlp(self) -> nn.Sequential:
        into, back = nn.Linear(self.width, self.hidden), nn.Linear(self.hidden, self.width)
        if self.kind == "scaled_cosine":
            for linear in (into, back):
                start_at_norm_one(linear)
        return nn.Sequential(self.norm(), into, nn.GELU(), back)

    def residual(self, body: nn.Sequential) -> nn.Module:
        if self.kind == "scaled_cosine":
            return WeightedResidual(body, self.width, initial=self.residual_weight)
        return Residual(body)


def _started(attention: L2Attention) -> L2Attention:
    """With W_Q,h W_Q,h^T / s a projection: at torch's own start it is a tenth of one, and values vanish."""
    nn.init.orthogonal_(attention.query.weight, gain=(len(attention.query.weight) // attention.heads) ** 0.25)
    return attention


def _one_of(value: str, name: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} {value!r} should be one of {', '.join(known)}")
