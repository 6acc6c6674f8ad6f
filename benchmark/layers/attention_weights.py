"""The weights of a model's attention, by layer, role and head.

Penalties, measures of singular values and bounds read them here; nothing else slices a weight.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from benchmark.layers.attention import AttentionByHeads, rows_by_head
from benchmark.layers.attention_l2 import L2Attention
from benchmark.layers.scaled_cosine import CenterNorm
from benchmark.runtime.errors import BenchmarkError

# timm's layers with a fused `qkv`: its outputs are queries, keys and values, each head after head
FUSED = (
    "timm.models.vision_transformer.Attention", "timm.layers.attention.Attention", "timm.models.xcit.XCA",
    "timm.models.swin_transformer.WindowAttention",
)  # fmt: skip
NORM_FIRST = (
    "timm.models.vision_transformer.Block", "timm.models.xcit.XCABlock",
    "timm.models.swin_transformer.SwinTransformerBlock",
)  # x + attn(norm1(x))  # fmt: skip
ROLES = ("query", "key", "value", "output")
DEFINE = "define attention(model) in method.py, returning a list of benchmark.layers.attention_weights.AttentionWeights"


@dataclass(frozen=True)
class AttentionWeights:
    """One attention layer's matrices by head, acting on rows: head h has the queries x query[h].

    They are functions of the model's parameters, so gradients reach those. A role that the layer lacks is None: L2
    attention has no key weight.
    """

    name: str
    query: torch.Tensor  # (heads, width, inner)
    key: torch.Tensor | None  # (heads, width, inner)
    value: torch.Tensor  # (heads, width, inner)
    output: torch.Tensor | None  # (heads, inner, width)
    gamma: torch.Tensor | None = None  # (width,), the scale of the norm in front, which multiplies W

    def role(self, role: str) -> torch.Tensor | None:
        """Return the matrices of one of ROLES."""
        return getattr(self, role)


def attention_weights(model: nn.Module) -> list[AttentionWeights]:
    """Return the attention layers of a model in order, named "attention 1" and so on: those of benchmark/layers and FUSED.

    Raises:
        BenchmarkError: there is none, or one is of an unknown type (other layers of timm order their weights otherwise).
    """
    layers: list[AttentionWeights] = []
    for module, norm in _walk(model, None):
        parts = _parts(module)
        if parts is not None:
            scale = norm.weight if isinstance(norm, nn.LayerNorm) else norm.gamma if isinstance(norm, CenterNorm) else None
            gamma = scale if scale is not None and scale.shape == parts[0].shape[1:2] else None
            layers.append(AttentionWeights(f"attention {len(layers) + 1}", *parts, gamma=gamma))
        elif is_attention(module):
            raise BenchmarkError(f"the attention layer {_kind(module)} is not known here; {DEFINE}")
    if not layers:
        raise BenchmarkError(f"{type(model).__name__} has no attention layer that is known here; {DEFINE}")
    return layers


Parts = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor | None]


def _parts(module: nn.Module) -> Parts | None:
    """Return query, key, value and output of an attention layer; None for any other module."""
    if isinstance(module, AttentionByHeads):
        return module.head_weights()
    if isinstance(module, L2Attention):
        query, value, output = module.head_weights()
        return query, None, value, output
    if _kind(module) not in FUSED:
        return None
    heads, qkv, project = module.num_heads, module.qkv, module.proj
    assert isinstance(heads, int)
    assert isinstance(qkv, nn.Linear)
    assert isinstance(project, nn.Linear)
    query, key, value = (rows_by_head(weight, heads) for weight in qkv.weight.chunk(3))
    return query, key, value, project.weight.mT.unflatten(0, (heads, -1))


def _kind(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__name__}"


def is_attention(module: nn.Module) -> bool:
    """Return whether a module is an attention layer: by its type, or because it has a number of heads."""
    counts = isinstance(getattr(module, "num_heads", None), int)
    return isinstance(module, nn.MultiheadAttention) or counts or _parts(module) is not None


def _walk(module: nn.Module, norm: nn.Module | None) -> Iterator[tuple[nn.Module, nn.Module | None]]:
    """Yield modules in order, each with the norm directly before it.

    It precedes the module in a plain sequence, or the layer whose `content` the module is, or is timm's `norm1` of its block.
    """
    yield module, norm
    before: nn.Module | None = None
    for name, child in module.named_children():
        first = getattr(module, "norm1", None) if _kind(module) in NORM_FIRST else None
        in_front = {"attn": first, "content": norm}.get(name, before)
        yield from _walk(child, in_front if isinstance(in_front, nn.Module) else None)
        before = child if type(module) is nn.Sequential else None
