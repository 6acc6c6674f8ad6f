"""timm's vision transformer with a last block that computes its class token alone, used while an attack searches.

Where the head reads the class token only, whatever else the last block puts out is thrown away: its MLP and the end of its
attention need not be computed for the other tokens. And attention by one query q needs no keys and values of its own: for
head h and normed tokens X,

    q (X K_h^T + 1 b^T)^T = (q K_h) X^T + constant,    a (X V_h^T + 1 c^T) = (a X) V_h^T + c    since a sums to 1,

and a constant does not change a softmax. The function is the same but for rounding. A transformer of d blocks saves about
the d-th part of its time.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

# They treat each token by itself in evaluation mode.
BY_TOKEN = {nn.Linear, nn.LayerNorm, nn.Identity, nn.Dropout, nn.GELU, nn.ReLU, nn.SiLU, nn.Tanh}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def timm_vit() -> ModuleType | None:
    """timm's module of vision transformers if it is loaded; if not, no model can contain one."""
    return sys.modules.get("timm.models.vision_transformer")


def applies(vit: Any) -> bool:
    """Whether `vit` is timm's own, in evaluation mode, with a head that reads the class token only, and what follows the
    last attention is torch's and timm's own, without hooks: only of such is it known that it treats each token by itself.
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


def logits(vit: Any, images: torch.Tensor) -> torch.Tensor:
    """`vit` on (n, c, h, w) images, where `applies`: (n, classes)."""
    tokens = vit.norm_pre(vit.patch_drop(vit._pos_embed(vit.patch_embed(images))))
    *before, last = vit.blocks
    for block in before:
        tokens = block(tokens)
    first = tokens[:, :1] + last.ls1(_attended(last.attn, last.norm1(tokens)))
    first = first + last.ls2(last.mlp(last.norm2(first)))
    return vit.forward_head(vit.norm(first))


def _attended(attention: Any, tokens: torch.Tensor) -> torch.Tensor:
    """The first token that `attention` puts out for (n, tokens, width): (n, 1, width)."""
    if not _plain(attention):
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


def _plain(attention: Any) -> bool:
    """timm's attention, neither normed nor rescaled nor put on a layer of another kind; of a size whose products the CPU's
    libraries do not round by their place in the batch.
    """
    timm = timm_vit()
    if timm is None or type(attention) is not timm.Attention:
        return False
    normed = any(type(part) is not nn.Identity for part in (attention.q_norm, attention.k_norm))
    rescaled = attention.scale != attention.head_dim**-0.5
    sized = attention.head_dim % 4 == 0 and attention.num_heads * attention.head_dim >= 16
    return sized and not normed and not rescaled and type(attention.qkv) is type(attention.proj) is nn.Linear
