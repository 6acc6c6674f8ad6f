"""Faster operations of vision transformers, used while an attack searches.

On the CPU, as plain matrix products: attention over few tokens, and patch embedding, a convolution whose stride is its kernel
(measured: `docs/attacks.md`). On any device: timm's last block for the class token alone. The functions are the same but for
rounding. An image found with them counts only if the unmodified model misclassifies it too (`slots.Search.record`).

Where timm's head reads the class token only, the last block's MLP and the end of its attention are needed for that token
alone. Attention by one query q needs neither keys nor values: for head h and normed tokens X,

    q (X K_h^T + 1 b^T)^T = (q K_h) X^T + constant,    a (X V_h^T + 1 c^T) = (a X) V_h^T + c    since a sums to 1,

and a constant does not change a softmax.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.utils import _pair

# layers that treat each token by itself in evaluation mode
BY_TOKEN = {nn.Linear, nn.LayerNorm, nn.Identity, nn.Dropout, nn.GELU, nn.ReLU, nn.SiLU, nn.Tanh}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def timm_vit() -> ModuleType | None:
    """Return timm's module of vision transformers if it is loaded; otherwise no model can contain one."""
    return sys.modules.get("timm.models.vision_transformer")


def class_token_suffices(vit: Any) -> bool:
    """Return whether `vit` is timm's own, in evaluation mode, with a head that reads the class token only.

    All that follows the last attention must be layers of torch and timm that treat each token by itself, without hooks.
    """
    timm = timm_vit()
    if timm is None or type(vit) is not timm.VisionTransformer or vit.training:
        return False
    if vit.global_pool != "token" or vit.attn_pool is not None or vit.grad_checkpointing or not len(vit.blocks):
        return False
    if vars(vit).keys() & {"forward", "forward_features", "forward_head", "pool"}:  # replaced in this instance
        return False
    block = vit.blocks[-1]
    if type(vit.blocks) is not nn.Sequential or type(block) is not timm.Block:
        return False
    plain = BY_TOKEN | {timm.Mlp, timm.LayerScale, timm.DropPath}
    around = [m for name, part in block.named_children() if name != "attn" for m in part.modules()]
    watched = [vit.blocks, *block.modules(), vit.norm]
    return all(type(m) in plain for m in [*around, vit.norm]) and not any(
        m.training or "forward" in vars(m) or any(getattr(m, name) for name in HOOKS) for m in watched
    )


def class_token_logits(vit: Any, images: torch.Tensor) -> torch.Tensor:
    """Return the logits (n, classes) of images (n, c, h, w) by the class token; `class_token_suffices` must hold."""
    tokens = vit.norm_pre(vit.patch_drop(vit._pos_embed(vit.patch_embed(images))))
    *before, last = vit.blocks
    for block in before:
        tokens = block(tokens)
    first = tokens[:, :1] + last.ls1(_attended(last.attn, last.norm1(tokens)))
    first = first + last.ls2(last.mlp(last.norm2(first)))
    return vit.forward_head(vit.norm(first))


def _attended(attention: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Return the first token of the output of `attention` on (n, tokens, width): (n, 1, width)."""
    if not _untouched(attention):
        return attention(tokens)[:, :1]
    n, _, width = tokens.shape
    heads, weight, bias = attention.num_heads, attention.qkv.weight, attention.qkv.bias
    query = functional.linear(tokens[:, 0], weight[:width], None if bias is None else bias[:width])
    _, keys, values = weight.reshape(3, heads, -1, width)
    query = query.view(n, heads, -1).transpose(0, 1) * attention.scale  # (heads, n, width / heads)
    scores = (query @ keys).transpose(0, 1) @ tokens.mT  # (n, heads, tokens)
    gathered = (scores.softmax(-1) @ tokens).transpose(0, 1) @ values.mT
    value = gathered.transpose(0, 1).reshape(n, 1, width)
    return attention.proj_drop(attention.proj(value if bias is None else value + bias[2 * width :]))


def _untouched(attention: Any) -> bool:
    """Return whether `attention` is timm's, with its own scale and plain linear layers, without norms of queries or keys.

    Its size must be one whose products the CPU's libraries round alike wherever they lie in the batch.
    """
    timm = timm_vit()
    if timm is None or type(attention) is not timm.Attention:
        return False
    normed = any(type(part) is not nn.Identity for part in (attention.q_norm, attention.k_norm))
    rescaled = attention.scale != attention.head_dim**-0.5
    sized = attention.head_dim % 4 == 0 and attention.num_heads * attention.head_dim >= 16
    return sized and not normed and not rescaled and type(attention.qkv) is type(attention.proj) is nn.Linear


FEW = 32  # tokens; from about 64 on torch's fused kernel is faster
# float32 numbers in 16 bytes: at other addresses the rounding of the CPU's matrix products depends on a matrix's place in
# the batch, and a search must not depend on that place
ALIGNED = 4
Place = ModuleType | type[nn.Module]  # holds the function that is replaced
Operation = Callable[..., torch.Tensor]
_LOCK = threading.Lock()
_THREAD = threading.local()


class FusedOps:
    """A context in which this thread uses the faster operations; `used` tells whether it did.

    Functions of torch and timm are replaced while any thread is inside; in other threads the replacements call the originals.
    """

    _inside = 0  # threads and nested contexts
    _originals: ClassVar[dict[str, tuple[Place, Operation]]] = {}

    def __init__(self) -> None:
        self.used = False
        self._class_token: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()  # whether it suffices

    def by_class_token(self, vit: nn.Module, images: torch.Tensor) -> bool:
        """Return whether the class token of `vit` suffices, which its logits on the first images confirm."""
        if vit not in self._class_token:
            self._class_token[vit] = class_token_suffices(vit) and _agree(vit, images)
        return self._class_token[vit]

    def __enter__(self) -> None:
        with _LOCK:
            if not FusedOps._inside:
                for place, name, replacement in _replacements():
                    FusedOps._originals[name] = place, getattr(place, name)
                    setattr(place, name, replacement)
            FusedOps._inside += 1
        self._outer, _THREAD.entered = entered(), self

    def __exit__(self, *_: object) -> None:
        _THREAD.entered = self._outer
        with _LOCK:
            FusedOps._inside -= 1
            if not FusedOps._inside:
                for name, (place, original) in FusedOps._originals.items():
                    setattr(place, name, original)


def entered() -> FusedOps | None:
    """Return the context that this thread is inside, if any."""
    return getattr(_THREAD, "entered", None)


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return softmax(Q K^T / sqrt(d)) V of (..., tokens, d), computed as the transpose of V^T softmax(K Q^T / sqrt(d)).

    torch is faster at a softmax over rows, and at a product whose short side is its first.
    """
    weights = (key @ (query * query.shape[-1] ** -0.5).mT).softmax(-2)
    return (value.mT @ weights).mT


def patches(images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Convolve (n, c, h, w) with a kernel (d, c, p, q) of stride (p, q), which tiles them: (n, d, h/p, w/q)."""
    n, channels, height, width = images.shape
    p, q = weight.shape[2:]
    tiles = images.reshape(n, channels, height // p, p, width // q, q).permute(0, 2, 4, 1, 3, 5)
    tokens = functional.linear(tiles.reshape(n, -1, channels * p * q), weight.flatten(1), bias)
    return tokens.transpose(1, 2).reshape(n, -1, height // p, width // q)


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    fused = entered()
    few = query.dim() >= 3 and max(query.shape[-2], key.shape[-2]) <= FEW
    same = query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
    if fused and few and same and _aligned(query, key, value) and not any(map(_asked, (*args, *kwargs.values()))):
        fused.used = True
        return attention(query, key, value)
    return _original("scaled_dot_product_attention")(query, key, value, *args, **kwargs)


def _convolution(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *args: Any, **kwargs: Any
) -> torch.Tensor:
    fused = entered()
    if fused and _plain(input) and input.dim() == 4 and not kwargs and _tiles(input, weight, *args):
        fused.used = True
        return patches(input, weight, bias)
    return _original("conv2d")(input, weight, bias, *args, **kwargs)


def _forward(vit: nn.Module, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    fused = entered()
    if fused and not args and not kwargs and fused.by_class_token(vit, x):
        fused.used = True
        return class_token_logits(vit, x)
    return _original("forward")(vit, x, *args, **kwargs)


@torch.no_grad()
def _agree(vit: nn.Module, images: torch.Tensor) -> bool:
    """Return whether the class token alone gives the same logits but for rounding; it does not where timm is patched."""
    own = _original("forward")(vit, images)
    return torch.allclose(class_token_logits(vit, images), own, rtol=0.0, atol=1e-4 * float(own.abs().max()))


def _replacements() -> list[tuple[Place, str, Operation]]:
    timm = timm_vit()
    return [
        (functional, "scaled_dot_product_attention", _attention),
        (functional, "conv2d", _convolution),
        *([(timm.VisionTransformer, "forward", _forward)] if timm else []),
    ]


def _original(name: str) -> Operation:
    return FusedOps._originals[name][1]


def _plain(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype == torch.float32


def _aligned(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Return whether each image's queries, keys, values and weights begin at a multiple of 16 bytes."""
    weights = (*query.shape[1:-1], key.shape[-2])
    shapes = (query.shape[1:], key.shape[1:], value.shape[1:], weights)
    return _plain(query) and all(math.prod(shape) % ALIGNED == 0 for shape in shapes)


def _asked(option: object) -> bool:
    """Return whether an argument asks for a mask, dropout, causality, another scale or fewer heads."""
    return isinstance(option, torch.Tensor) or option not in (None, False, 0)


def _tiles(
    images: torch.Tensor, weight: torch.Tensor, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> bool:
    """Return whether the kernel tiles the images, as in a patch embedding, with `ALIGNED` patches larger than a pixel."""
    size = tuple(weight.shape[2:])
    whole = all(side % step == 0 for side, step in zip(images.shape[2:], size, strict=True))
    alike = _pair(stride) == size != (1, 1) and _pair(padding) == (0, 0) and _pair(dilation) == (1, 1)
    return whole and alike and groups == 1 and math.prod(weight.shape[1:]) % ALIGNED == 0
