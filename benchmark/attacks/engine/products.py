"""Two operations of vision transformers as plain matrix products, while a search asks a model on the CPU.

Attention over few tokens: torch's fused kernel is made for long sequences, and the products take half to two thirds of its
time. Patch embedding, a convolution whose stride is its kernel: torch's gradient by the input takes 2 to 10 times as long
as that of the same product (measured: `docs/attacks.md`). The functions are the same but for rounding, so what is found
this way counts only if the model itself, untouched, is wrong about it: `slots.Search.record` asks it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch.nn import functional

FEW = 32  # tokens; the fused kernel is the faster from about 64 on
_LOCK = threading.Lock()
_THREAD = threading.local()


class ByProducts:
    """While it is entered, this thread's calls that gain by it are carried out so; `used` tells whether any was.

    torch's functions are replaced while any thread is inside, since interception by torch itself costs each operation of
    the model as much as is gained; for other threads the replacements call the originals.
    """

    _inside = 0
    _originals: ClassVar[dict[str, Callable]] = {}

    def __init__(self) -> None:
        self.used = False

    def __enter__(self) -> None:
        with _LOCK:
            if not ByProducts._inside:
                for name, replacement in _REPLACEMENTS.items():
                    ByProducts._originals[name] = getattr(functional, name)
                    setattr(functional, name, replacement)
            ByProducts._inside += 1
        self._outer, _THREAD.entered = getattr(_THREAD, "entered", None), self

    def __exit__(self, *_: object) -> None:
        _THREAD.entered = self._outer
        with _LOCK:
            ByProducts._inside -= 1
            if not ByProducts._inside:
                for name, original in ByProducts._originals.items():
                    setattr(functional, name, original)


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """softmax(Q K^T / sqrt(d)) V of (..., tokens, d) tensors; by K Q^T, since torch's softmax over rows is the faster."""
    weights = (key @ (query * query.shape[-1] ** -0.5).transpose(-2, -1)).softmax(-2)
    return weights.transpose(-2, -1) @ value


def patches(images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The convolution of (n, c, h, w) by a kernel (d, c, p, q) of stride (p, q), which tiles them: (n, d, h/p, w/q)."""
    n, channels, height, width = images.shape
    p, q = weight.shape[2:]
    tiles = images.reshape(n, channels, height // p, p, width // q, q).permute(0, 2, 4, 1, 3, 5)
    tokens = functional.linear(tiles.reshape(n, -1, channels * p * q), weight.flatten(1), bias)
    return tokens.transpose(1, 2).reshape(n, -1, height // p, width // q)


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    entered = getattr(_THREAD, "entered", None)
    few = query.dim() >= 3 and max(query.shape[-2], key.shape[-2]) <= FEW
    same = query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
    if entered and few and same and _plain(query) and not any(map(_asked, (*args, *kwargs.values()))):
        entered.used = True
        return attention(query, key, value)
    return ByProducts._originals["scaled_dot_product_attention"](query, key, value, *args, **kwargs)


def _convolution(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *args: Any, **kwargs: Any
):
    entered = getattr(_THREAD, "entered", None)
    if entered and _plain(input) and input.dim() == 4 and not kwargs and _tiles(input, weight, *args):
        entered.used = True
        return patches(input, weight, bias)
    return ByProducts._originals["conv2d"](input, weight, bias, *args, **kwargs)


_REPLACEMENTS = {"scaled_dot_product_attention": _attention, "conv2d": _convolution}


def _plain(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype == torch.float32


def _asked(option: Any) -> bool:
    """Whether an argument asks for more than attention: a mask, dropout, causality, another scale, fewer heads."""
    return isinstance(option, torch.Tensor) or option not in (None, False, 0)


def _tiles(
    images: torch.Tensor, weight: torch.Tensor, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> bool:
    """Whether the kernel's places tile the images: a patch embedding, of patches larger than a pixel."""
    size = tuple(weight.shape[2:])
    whole = all(side % step == 0 for side, step in zip(images.shape[2:], size, strict=True))
    alike = _pair(stride) == size != (1, 1) and _pair(padding) == (0, 0) and _pair(dilation) == (1, 1)
    return whole and alike and groups == 1


def _pair(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value, value)
