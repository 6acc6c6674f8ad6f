"""The vision transformers of CertViT's Table 1, without biases but those of LayerNorm and dot-product attention."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from benchmark.layers.attention import SelfAttention
from benchmark.layers.attention_l2 import L2Attention
from benchmark.layers.lipschitz import BoundedLinear, NormalisedHead, SLLBlock
from benchmark.layers.normalise import Normalise
from benchmark.layers.residual import Residual
from benchmark.layers.tokens import ClassToken, LayerProject, MeanPool, Patchify, Positions, TakeToken
from benchmark.specs.data import DataSpec

NORMS = ("layernorm", "project", "none")
ATTENTION = ("dot_product", "l2")
POOLING = ("class", "mean")


@dataclass(frozen=True)
class _Block:
    """Makes the encoder's parts, without biases but those of LayerNorm and dot-product attention."""

    width: int
    heads: int
    hidden: int
    norm: str
    attention: str
    radius: float
    bounded: bool

    def norms(self) -> list[nn.Module]:
        if self.norm == "layernorm":
            return [nn.LayerNorm(self.width)]
        return [LayerProject(self.radius)] if self.norm == "project" else []

    def parts(self) -> list[nn.Module]:
        attention: nn.Module
        if self.attention == "l2":
            attention = L2Attention(self.width, self.heads)
            start_queries(attention)
        else:
            attention = SelfAttention(self.width, self.heads)
        if self.bounded:
            return [*self.norms(), Residual(attention), SLLBlock(self.width, self.hidden)]
        into, back = nn.Linear(self.width, self.hidden, bias=False), nn.Linear(self.hidden, self.width, bias=False)
        return [
            Residual(nn.Sequential(*self.norms(), attention)),
            Residual(nn.Sequential(*self.norms(), into, nn.GELU(), back)),
        ]


def vit(
    data: DataSpec,
    *,
    patch_size: int,
    width: int,
    depth: int,
    heads: int,
    mlp_ratio: float = 4.0,
    attention: str = "l2",
    norm: str = "layernorm",
    radius: float = 1.0,
    pooling: str = "class",
    bounded: bool = False,
    std: float = 1.0,
) -> nn.Sequential:
    """A pre-norm transformer: images (n, c, h, w) in [0, 1], 0.5 taken off, to logits (n, classes). LayerNorm and dot-product
    attention alone have biases.

    Args:
        std: by which pixels are divided then; that of a network which it is distilled from.
        attention: "l2" (with A_h, queries serving as keys), or "dot_product".
        norm: "layernorm"; "project", onto the ball of `radius`, which is 1-Lipschitz; or "none".
        pooling: "class" token, or "mean" of the patches without one.
        bounded: all but the attention 1-Lipschitz by construction, as in LoFAST: a bounded patch embedding, SLL blocks for
            MLPs, a head with rows of norm 1; the norm stands before the residual then.

    Raises:
        ValueError: patches do not tile the image, heads do not divide the width, or an unknown option.
    """
    one_of(norm, "norm", NORMS)
    one_of(attention, "attention", ATTENTION)
    one_of(pooling, "pooling", POOLING)
    channels, height, side = data.shape
    if height != side or side % patch_size:
        raise ValueError(f"patch_size {patch_size} does not tile {height}x{side} images")
    block = _Block(width, heads, int(width * mlp_ratio), norm, attention, radius, bounded)
    pixels = channels * patch_size**2
    token = [ClassToken(width)] if pooling == "class" else []
    layers: list[nn.Module] = [
        Normalise(0.5, std),
        Patchify(patch_size),
        BoundedLinear(pixels, width) if bounded else nn.Linear(pixels, width, bias=False),
        *token,
        Positions((side // patch_size) ** 2 + len(token), width),
        *(part for _ in range(depth) for part in block.parts()),
        *([] if bounded else block.norms()),
    ]
    pool = TakeToken() if pooling == "class" else MeanPool()
    head = NormalisedHead(width, data.classes) if bounded else nn.Linear(width, data.classes, bias=False)
    return nn.Sequential(*layers, pool, head)


def start_queries(attention: L2Attention) -> None:
    """Makes W_Q,h W_Q,h^T / s a projection: at torch's own start it is a tenth of one, and values vanish."""
    nn.init.orthogonal_(attention.query.weight, gain=(attention.query.out_features // attention.heads) ** 0.25)


def one_of(value: str, what: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{what} {value!r} is none of {', '.join(known)}")
