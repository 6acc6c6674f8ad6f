"""Which matrices of a model are the weights of its attention, by layer, role and head.

Whatever looks at them (a penalty, a measure of singular values, a bound) reads these; nothing else slices a weight.
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

# timm's with a fused `qkv`, whose outputs are queries, keys and values; inside each, head after head
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

    They are functions of the model's parameters, so that gradients reach these. A role that the layer lacks is None: keys
    of L2 attention share the queries' weight.
    """

    name: str
    query: torch.Tensor  # (heads, width, inner)
    key: torch.Tensor | None  # (heads, width, inner)
    value: torch.Tensor  # (heads, width, inner)
    output: torch.Tensor | None  # (heads, inner, width)
    gamma: torch.Tensor | None = None  # (width,), the scale of the norm in front, whose product with W is what acts

    def role(self, role: str) -> torch.Tensor | None:
        """The matrices of one of ROLES."""
        return getattr(self, role)


def attention_weights(model: nn.Module) -> list[AttentionWeights]:
    """The attention layers of a model, in order, "attention 1" and so on: those of benchmark/layers, and timm's of FUSED.

    Raises:
        BenchmarkError: none is found, or one that is not known (others of timm cut their weights otherwise).
    """
    found: list[AttentionWeights] = []
    for module, norm in _walk(model, None):
        parts = _parts(module)
        if parts is not None:
            found.append(AttentionWeights(f"attention {len(found) + 1}", *parts, gamma=_gamma(norm, parts[0])))
        elif is_attention(module):
            raise BenchmarkError(f"the attention layer {_kind(module)} is not known here; {DEFINE}")
    if not found:
        raise BenchmarkError(f"{type(model).__name__} has no attention layer that is known here; {DEFINE}")
    return found


Parts = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor | None]


def _parts(module: nn.Module) -> Parts | None:
    """Query, key, value and output of an attention layer; None for any other module."""
    if isinstance(module, AttentionByHeads):
        return module.head_weights()
    if isinstance(module, L2Attention):
        query, value, output = module.head_weights()
        return query, None, value, output
    return _fused(module) if _kind(module) in FUSED else None


def _fused(module: nn.Module) -> Parts:
    heads, qkv, project = module.num_heads, module.qkv, module.proj
    assert isinstance(heads, int)
    assert isinstance(qkv, nn.Linear)
    assert isinstance(project, nn.Linear)
    query, key, value = (rows_by_head(weight, heads) for weight in qkv.weight.chunk(3))
    return query, key, value, project.weight.mT.unflatten(0, (heads, -1))


def _kind(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__name__}"


def is_attention(module: nn.Module) -> bool:
    """Whether a module is an attention layer, by its type or, of those not known here, by the heads that it counts."""
    counts = isinstance(getattr(module, "num_heads", None), int)
    return isinstance(module, nn.MultiheadAttention) or counts or _parts(module) is not None


def _walk(module: nn.Module, norm: nn.Module | None) -> Iterator[tuple[nn.Module, nn.Module | None]]:
    """Modules in order, each with the norm directly before it: in a plain sequence, as timm's `norm1` of a block, or before
    what wraps it as its `content`.
    """
    yield module, norm
    before: nn.Module | None = None
    for name, child in module.named_children():
        first = getattr(module, "norm1", None) if _kind(module) in NORM_FIRST else None
        pair = {"attn": first, "content": norm}.get(name, before)
        yield from _walk(child, pair if isinstance(pair, nn.Module) else None)
        before = child if type(module) is nn.Sequential else None


def _gamma(norm: nn.Module | None, query: torch.Tensor) -> torch.Tensor | None:
    """The norm's scale for each channel that the attention reads; None where it has none."""
    weight = norm.weight if isinstance(norm, nn.LayerNorm) else norm.gamma if isinstance(norm, CenterNorm) else None
    return weight if weight is not None and weight.shape == query.shape[1:2] else None
