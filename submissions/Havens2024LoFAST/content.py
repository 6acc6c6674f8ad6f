"""A 1-Lipschitz vision transformer whose attention is a competition of scores, and its twin without attention.

The network of grid.py with other blocks. In the stages before the last each block is an orthogonal map, which makes queries
and keys, and a competition over 5 tokens; in the last stage over all tokens. The twin has shifts and absolute values in
their places: as many parameters, but for one budget a head, and half as many folded channels as scores.
"""

from __future__ import annotations

from torch import nn

from benchmark.layers.competitive_attention import CompetitiveAttention, ConeAttention
from benchmark.layers.isometries import Absolute, ShiftTokens
from benchmark.layers.kinds import checked, whole
from benchmark.layers.lipschitz import NormalisedHead, OrthogonalLinear
from benchmark.layers.normalise import Normalise
from benchmark.layers.tokens import MergeTokens, Patchify, Positions
from benchmark.specs.data import DataSpec

MIXERS = ("competition", "cone", "shift")
NEAR = 5  # a token and its four neighbours
HEAD = 12  # channels of a head that looks at 5 tokens: 5 queries, 5 keys and 2 that stay


def build(
    data: DataSpec, *, patch_size: int, width: int, stages: int, depth: int, last: int, outputs: int, mixer: str
) -> nn.Sequential:
    """Images (n, c, h, w) in [0, 1] to logits (n, classes).

    Args:
        patch_size: side of the patches.
        width: channels of the first stage, a multiple of 12; each next stage has twice as many, of 2x2 merged tokens.
        stages: how many.
        depth: blocks of each stage before the last.
        last: blocks of the last stage, each over all its tokens.
        outputs: neurons of the two maps after the tokens.
        mixer: "competition" (sparsemax), "cone", or "shift" for the twin.

    Raises:
        ValueError: patches do not tile the image, another mixer, or as of the layers.
    """
    given = {"patch_size": patch_size, "width": width, "stages": stages, "depth": depth, "last": last, "outputs": outputs}
    for name, value in given.items():
        checked(name, whole({"depth": 0, "last": 0, "outputs": 2}.get(name, 1), 1024), value)
    channels, height, side = data.shape
    if height != side or side % (patch_size * 2 ** (stages - 1)):
        raise ValueError(f"patches of {patch_size}, merged {stages - 1} times, do not tile {height}x{side} images")
    if width % HEAD:
        raise ValueError(f"width {width} should be a multiple of {HEAD}")
    if mixer not in MIXERS:
        raise ValueError(f"mixer {mixer!r} should be one of {', '.join(MIXERS)}")
    side //= patch_size
    layers: list[nn.Module] = [Normalise(mean=0.5, std=1.0), Patchify(patch_size)]
    layers += [OrthogonalLinear(channels * patch_size**2, width), Positions(side**2, width), Absolute(width // 2)]
    for _ in range(stages - 1):
        for _ in range(depth):
            layers += _block(mixer, width, side, NEAR, width // HEAD)
        layers += [MergeTokens(side), OrthogonalLinear(4 * width, 2 * width), Absolute(width)]
        side, width = side // 2, 2 * width
    for _ in range(last):
        layers += _block(mixer, width, side, side**2, width // (2 * side**2))
    layers += [nn.Flatten(1), OrthogonalLinear(side**2 * width, outputs), Absolute(outputs // 2)]
    layers += [OrthogonalLinear(outputs, outputs), Absolute(outputs // 2)]
    return nn.Sequential(*layers, NormalisedHead(outputs, data.classes))


def _block(mixer: str, width: int, side: int, window: int, heads: int) -> list[nn.Module]:
    """One block. About half of the heads' scores are reflected, so the twin folds half as many channels."""
    if mixer == "shift":
        return [ShiftTokens(side, width // 8), OrthogonalLinear(width, width), Absolute(heads * window // 2)]
    kind = CompetitiveAttention if mixer == "competition" else ConeAttention
    return [OrthogonalLinear(width, width), kind(width, heads, side=side, window=window)]
