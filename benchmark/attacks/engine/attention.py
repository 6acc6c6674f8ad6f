"""Attention over few tokens as two batched products, while a search asks a model on the CPU.

torch's fused kernel is made for long sequences; over a small vision transformer's few tokens the plain products take
half to two thirds of its time (measured: `docs/attacks.md`). The function is the same but for rounding, so what is found
this way counts only if the model itself, untouched, is wrong about it: `slots.Search.record` asks it.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch.nn import functional

FEW = 32  # tokens; the fused kernel is the faster from about 64 on
_LOCK = threading.Lock()
_THREAD = threading.local()


class ByProducts:
    """While it is entered, this thread's calls of `scaled_dot_product_attention` that gain by it are carried out so.

    torch's function is replaced while any thread is inside, since interception by torch itself costs each operation of the
    model as much as is gained; for other threads the replacement calls the original. `used` tells whether any call was
    carried out so.
    """

    _inside = 0
    _fused = staticmethod(functional.scaled_dot_product_attention)

    def __init__(self) -> None:
        self.used = False

    def __enter__(self) -> None:
        with _LOCK:
            if not ByProducts._inside:
                ByProducts._fused = staticmethod(functional.scaled_dot_product_attention)
                functional.scaled_dot_product_attention = _either
            ByProducts._inside += 1
        self._outer, _THREAD.entered = getattr(_THREAD, "entered", None), self

    def __exit__(self, *_: object) -> None:
        _THREAD.entered = self._outer
        with _LOCK:
            ByProducts._inside -= 1
            if not ByProducts._inside:
                functional.scaled_dot_product_attention = ByProducts._fused


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """softmax(Q K^T / sqrt(d)) V of (..., tokens, d) tensors; by K Q^T, since torch's softmax over rows is the faster."""
    weights = (key @ (query * query.shape[-1] ** -0.5).transpose(-2, -1)).softmax(-2)
    return weights.transpose(-2, -1) @ value


def _either(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    entered = getattr(_THREAD, "entered", None)
    if entered is None or not _gains(query, key, value) or any(map(_asked, (*args, *kwargs.values()))):
        return ByProducts._fused(query, key, value, *args, **kwargs)
    entered.used = True
    return attention(query, key, value)


def _asked(option: Any) -> bool:
    """Whether an argument asks for more than attention: a mask, dropout, causality, another scale, fewer heads."""
    return isinstance(option, torch.Tensor) or option not in (None, False, 0)


def _gains(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    same = query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
    plain = query.device.type == "cpu" and query.dtype == torch.float32
    return same and plain and query.dim() >= 3 and max(query.shape[-2], key.shape[-2]) <= FEW
