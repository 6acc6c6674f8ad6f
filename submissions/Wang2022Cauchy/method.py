"""ViT and CoViT (Wang and Ruan, "Understanding Adversarial Robustness of Vision Transformers via Cauchy Problem", 2022).

Pre-LayerNorm transformers whose tokens are mixed by self-attention (ViT) or by a convolution over their sequence and a
projection (CoViT); and the same two Lipschitz by construction, so that they can be certified. What differs from the paper
stands in README.md.
"""

from __future__ import annotations

import torch
from torch import nn

from benchmark.layers.attention import ResidualAttention, SelfAttention
from benchmark.layers.lipschitz import NormalisedHead, OrthogonalLinear, SLLBlock
from benchmark.layers.normalise import Normalise
from benchmark.layers.residual import Residual
from benchmark.layers.resize import Resize
from benchmark.layers.token_convolution import BoundedSliceConvolution, BoundedTokenConvolution, TokenConvolution
from benchmark.layers.tokens import ClassToken, LayerProject, MeanPool, Patchify, Positions
from benchmark.specs.data import DataSpec


def build(
    data: DataSpec,
    *,
    mixer: str,
    patch_size: int,
    width: int,
    depth: int,
    heads: int = 1,
    kernels: str = "3",
    pooling: str = "mean_all",
    resize: int = 0,
    certified: bool = False,
    norm: float = 0.25,
    residual: bool = True,
    hidden: int = 0,
    radius: float = 4.0,
) -> nn.Sequential:
    """Images (n, c, h, w) in [0, 1] to logits (n, classes), as a sequence that `certificates/local.py` can read.

    Args:
        mixer: of tokens: "attention"; "convolution" over their sequence, with a projection in the paper's network; "none".
        heads: of attention; they share the width.
        kernels: "3", or "3,3,3,3": odd, one for each slice of the channels.
        pooling: "mean_all" over all tokens and a class token, as in the authors' code; or "mean", without a class token,
            as in the text. A certified network has none.
        resize: side to which images are enlarged inside the model, a multiple of theirs; 0 for none.
        certified: Lipschitz by construction: an embedding with orthonormal rows, mixers of bounded norm in a residual, SLL
            blocks for the MLP, no LayerNorm, a head with rows of norm 1.
        norm: of a certified mixer's branch: of the convolution, or of W_V W_O of attention, whose W_Q and W_K have 1.
        residual: whether a certified convolution has the identity added; without, it starts near the identity.
        hidden: neurons of an SLL block; 0 for twice the width.
        radius: of the ball onto which tokens are projected before certified attention.

    Raises:
        ValueError: patches do not tile the image, heads or kernels do not divide the width, or an option is none of those
            named.
    """
    _one_of(mixer, "mixer", "attention", "convolution", "none")
    _one_of(pooling, "pooling", "mean_all", "mean")
    channels, height, side = data.shape
    if height != side or (resize or side) % side or (resize or side) % patch_size:
        raise ValueError(f"patch_size {patch_size} and resize {resize or side} do not fit {height}x{side} images")
    size, tokens = channels * patch_size**2, ((resize or side) // patch_size) ** 2
    layers: list[nn.Module] = [Resize(resize)] if resize else []
    convolved = tuple(int(k) for k in kernels.split(","))
    if certified:
        layers += [Normalise(0.5, 1.0), Patchify(patch_size), OrthogonalLinear(size, width), Positions(tokens, width)]
        for _ in range(depth):
            layers += _bounded_mixer(mixer, width, heads, convolved, norm, residual, radius)
            layers.append(SLLBlock(width, hidden or 2 * width))
        return nn.Sequential(*layers, MeanPool(), NormalisedHead(width, data.classes))
    layers += [Normalise(), Patchify(patch_size), nn.Linear(size, width)]
    layers += [_drawn(ClassToken(width))] if pooling == "mean_all" else []
    layers.append(_drawn(Positions(tokens + (pooling == "mean_all"), width)))
    for _ in range(depth):
        layers += _mixer(mixer, width, heads, convolved)
        mlp = (nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        layers.append(Residual(nn.Sequential(nn.LayerNorm(width), *mlp)))
    return nn.Sequential(*layers, MeanPool(), nn.LayerNorm(width), nn.Linear(width, data.classes))


def blocks(model: nn.Sequential) -> list[tuple[str, nn.Module]]:
    """The paper's encoder blocks: a mixer and the MLP after it, both residuals; the MLP alone where nothing mixes."""
    found: list[nn.Sequential] = []
    parts: list[nn.Module] = []
    for layer in model:
        if isinstance(layer, Residual | ResidualAttention | BoundedTokenConvolution | LayerProject | SLLBlock):
            parts.append(layer)
        if isinstance(layer, SLLBlock) or (isinstance(layer, Residual) and _is_mlp(layer.body)):
            found.append(nn.Sequential(*parts))
            parts = []
    return [(f"block {number}", block) for number, block in enumerate(found, start=1)]


def _is_mlp(body: nn.Module) -> bool:
    return isinstance(body, nn.Sequential) and any(isinstance(part, nn.GELU) for part in body)


def _mixer(mixer: str, width: int, heads: int, kernels: tuple[int, ...]) -> list[nn.Module]:
    if mixer == "none":
        return []
    if mixer == "attention":
        return [Residual(nn.Sequential(nn.LayerNorm(width), SelfAttention(width, heads)))]
    convolution = TokenConvolution(width, kernels)
    return [Residual(nn.Sequential(nn.LayerNorm(width), convolution, nn.Linear(width, width)))]


def _bounded_mixer(
    mixer: str, width: int, heads: int, kernels: tuple[int, ...], norm: float, residual: bool, radius: float
) -> list[nn.Module]:
    if mixer == "none":
        return []
    if mixer == "attention":
        return [LayerProject(radius), ResidualAttention(width, heads, qk_norm=1.0, vo_norm=norm**0.5)]
    convolution = BoundedTokenConvolution(width, kernels, norm=norm)
    return [Residual(convolution)] if residual else [_near_identity(convolution)]


def _near_identity(convolution: BoundedTokenConvolution) -> BoundedTokenConvolution:
    for part in convolution.slices:
        assert isinstance(part, BoundedSliceConvolution)
        width, kernel = part.raw.shape[0], part.raw.shape[2]
        nn.init.normal_(part.raw, std=0.02)
        with torch.no_grad():
            part.raw[:, :, kernel // 2] += torch.eye(width)
    return convolution


def _drawn(layer: nn.Module) -> nn.Module:
    """With its parameters from a standard normal, as in the authors' code."""
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer


def _one_of(value: str, name: str, *known: str) -> None:
    if value not in known:
        raise ValueError(f"{name} {value!r} should be one of {', '.join(known)}")
