"""The Swin transformers of CertViT's Table 3 (Liu et al. 2021): windows, shifted in every second block, patches merged
between stages.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from benchmark.layers.attention_window import DotProductWindowAttention, L2WindowAttention, WindowAttention
from benchmark.layers.normalise import Normalise
from benchmark.layers.residual import Residual
from benchmark.layers.tokens import MeanPool, MergeTokens, Patchify
from benchmark.specs.data import DataSpec

from .transformer import ATTENTION, one_of, start_queries

NORMS = ("layernorm", "none")


@dataclass(frozen=True)
class _Stage:
    """Makes the parts of a stage: `side` tokens along a side of its grid."""

    side: int
    width: int
    heads: int
    window: int
    mlp_ratio: float
    attention: str
    norm: str
    biases: bool

    def norms(self, width: int) -> list[nn.Module]:
        return [nn.LayerNorm(width)] if self.norm == "layernorm" else []

    def narrowed(self) -> list[nn.Module]:
        """What follows the merging of four tokens of the stage before, each half as wide as here."""
        return [*self.norms(2 * self.width), nn.Linear(2 * self.width, self.width, bias=False)]

    def block(self, number: int) -> list[nn.Module]:
        hidden = int(self.width * self.mlp_ratio)
        into, back = nn.Linear(self.width, hidden, bias=self.biases), nn.Linear(hidden, self.width, bias=self.biases)
        return [
            Residual(nn.Sequential(*self.norms(self.width), self._attention(shifted=number % 2 == 1))),
            Residual(nn.Sequential(*self.norms(self.width), into, nn.GELU(), back)),
        ]

    def _attention(self, *, shifted: bool) -> WindowAttention:
        window = min(self.window, self.side)
        places = {"side": self.side, "window": window, "shift": window // 2 if shifted and window < self.side else 0}
        if self.attention == "dot_product":
            return DotProductWindowAttention(self.width, self.heads, **places)
        made = L2WindowAttention(self.width, self.heads, **places)
        start_queries(made.content)
        return made


def swin(
    data: DataSpec,
    *,
    patch_size: int,
    width: int,
    depths: str,
    heads: int,
    window: int,
    mlp_ratio: float = 4.0,
    attention: str = "l2",
    norm: str = "layernorm",
    biases: bool = False,
    std: float = 1.0,
) -> nn.Sequential:
    """Swin as timm builds it: images (n, c, h, w) in [0, 1], 0.5 taken off, to logits (n, classes).

    Args:
        width, heads: of the first stage; each further stage has twice as many.
        depths: blocks of each stage, such as "2,2,6,2".
        window: tokens along a side of a window, or of the whole grid where that is smaller. Every second block is shifted
            by half of it, but not where one window is the whole grid.
        attention: "l2", or "dot_product", Swin's own, which has biases.
        norm: "layernorm" or "none".
        biases: of the patch embedding, the MLPs and the head, as timm's networks have them.
        std: by which pixels are divided; that of a network which it is distilled from.

    Raises:
        ValueError: patches do not tile the image, 2x2 tokens or windows a grid, heads do not divide the width, or an unknown
            option.
    """
    one_of(norm, "norm", NORMS)
    one_of(attention, "attention", ATTENTION)
    channels, height, side = data.shape
    if height != side or side % patch_size:
        raise ValueError(f"patch_size {patch_size} does not tile {height}x{side} images")
    counts = [int(count) if count.strip().isdecimal() else 0 for count in depths.split(",")]
    if min(counts) < 1:
        raise ValueError(f"depths {depths!r} should be the number of blocks of each stage, such as '2,2,6,2'")
    side //= patch_size
    layers: list[nn.Module] = [
        Normalise(0.5, std),
        Patchify(patch_size),
        nn.Linear(channels * patch_size**2, width, bias=biases),
    ]
    for number, depth in enumerate(counts):
        if number:
            layers.append(MergeTokens(side))
            side //= 2
        stage = _Stage(side, width * 2**number, heads * 2**number, window, mlp_ratio, attention, norm, biases)
        layers += stage.narrowed() if number else stage.norms(width)
        layers += [part for block in range(depth) for part in stage.block(block)]
    layers += stage.norms(stage.width)
    return nn.Sequential(*layers, MeanPool(), nn.Linear(stage.width, data.classes, bias=biases))
