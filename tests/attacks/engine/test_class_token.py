"""A vision transformer's last block for the class token alone: the same function, and only where that is known."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from timm.models.vision_transformer import Attention, Mlp, VisionTransformer
from tiny_attacked import assert_slots_and_company_change_no_bit
from tiny_models import Through
from torch import nn

from benchmark.attacks.engine import fused_ops
from benchmark.attacks.engine.fused_ops import FusedOps
from benchmark.layers.attention_l2 import L2Attention
from benchmark.runtime import arithmetic
from benchmark.specs.threat import ThreatModel

# newer versions have a LayerNorm of their own, and such a network is computed whole
pytestmark = pytest.mark.skipif(
    type(VisionTransformer(img_size=4, patch_size=4, embed_dim=4, depth=1, num_heads=1).norm) is not nn.LayerNorm,
    reason="for the blocks of timm 1.0.9",
)
WIDTH, HEADS, CLASSES, TOKENS = 16, 2, 6, 16


def transformer(**options) -> VisionTransformer:
    """A tiny one with weights that are far from symmetric, on 8x8 grey images."""
    torch.manual_seed(0)
    options = {"depth": 2, "num_heads": HEADS} | options
    vit = VisionTransformer(img_size=8, patch_size=2, in_chans=1, num_classes=CLASSES, embed_dim=WIDTH, **options)
    for parameter in vit.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape)
    vit.patch_embed.proj.weight.data *= 5  # so that the image counts
    return vit.eval().requires_grad_(False)


def images(n: int = 10) -> torch.Tensor:
    return torch.rand(n, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def assert_same_function(model: nn.Module) -> None:
    """The same logits, and the same gradient of a sum in which every logit takes part."""
    results = []
    for context in (FusedOps(), nullcontext()):
        leaf = images().requires_grad_()
        with context:
            logits = model(leaf)
            weights = torch.linspace(-1, 1, logits.numel()).view_as(logits)
            results.append((logits.detach(), *torch.autograd.grad((logits * weights).sum(), leaf)))
    for fused, own, rtol in zip(*results, (1e-4, 1e-3), strict=True):
        torch.testing.assert_close(fused, own, rtol=rtol, atol=1e-5 * float(own.abs().max()))


OPTIONS = {
    "depth": 1, "qkv_bias": False, "num_heads": 1, "reg_tokens": 2, "no_embed_class": True, "init_values": 0.5,
    "pre_norm": True, "fc_norm": True, "qk_norm": True,
}  # fmt: skip


@pytest.mark.parametrize("options", [{}, *({name: value} for name, value in OPTIONS.items())], ids=str)
def test_values_and_gradients_are_the_models_own(options, monkeypatch) -> None:
    model = transformer(**options)
    assert fused_ops.class_token_suffices(model)
    assert_same_function(model)
    seen, own = [], Mlp.forward
    monkeypatch.setattr(Mlp, "forward", lambda self, x: (seen.append(x.shape[1]), own(self, x))[1])
    with FusedOps():
        model(images())
        seen.clear()  # the first call is checked against the whole model
        model(images())
    every = TOKENS + 1 + options.get("reg_tokens", 0)
    assert seen == [every] * (options.get("depth", 2) - 1) + [1]


def test_it_is_used_inside_a_model_called_by_keyword_and_timm_is_restored() -> None:
    own, vit, fused = VisionTransformer.forward, transformer(), FusedOps()
    model = nn.Sequential(nn.Identity(), vit)
    with fused:
        assert VisionTransformer.forward is not own
        model(images())
        assert torch.equal(vit(x=images()), vit(images()))
    assert VisionTransformer.forward is own
    assert fused.used
    assert_same_function(model)


class Mixing(nn.Module):
    """Each token less the mean of all."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(1, keepdim=True)


class Own(VisionTransformer):
    """A head of its own: the mean of all tokens."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.forward_features(x).mean(1))


def transposed(model: VisionTransformer) -> None:
    qkv = model.blocks[-1].attn.qkv
    qkv.weight = nn.Parameter(qkv.weight.T.contiguous().T, requires_grad=False)


ATTENTION = {  # changes by which attention is computed whole
    "another kind": lambda model: setattr(model.blocks[-1], "attn", L2Attention(WIDTH, HEADS).eval()),
    "projection": lambda model: setattr(model.blocks[-1].attn, "proj", Mixing().eval()),
    "norm of queries": lambda model: setattr(model.blocks[-1].attn, "q_norm", Mixing().eval()),
    "scale": lambda model: setattr(model.blocks[-1].attn, "scale", 3.0),
    "another layout": transposed,
}
MIXED = {  # changes by which other tokens count, and the model is left as it is
    "dropout": lambda model: model.blocks[-1].mlp.train(),
    "average": lambda model: setattr(model, "global_pool", "avg"),
    "subclass": lambda model: setattr(model, "__class__", Own),
    "pool": lambda model: setattr(model, "pool", lambda x, pool_type=None: x.mean(1)),
    "mlp": lambda model: setattr(model.blocks[-1], "mlp", Mixing().eval()),
    "norm": lambda model: setattr(model, "norm", Mixing().eval()),
    "block": lambda model: model.blocks.append(Mixing().eval()),
    "hook": lambda model: model.blocks[-1].norm2.register_forward_hook(
        lambda *given: given[2] - given[2].mean(1, keepdim=True)
    ),
    "forward": lambda model: setattr(model.blocks[-1].mlp, "forward", Mixing().eval().forward),
}


@pytest.mark.parametrize("change", {**ATTENTION, **MIXED})
def test_a_model_that_is_changed_is_the_same_function(change) -> None:
    model = transformer()
    {**ATTENTION, **MIXED}[change](model)
    assert fused_ops.class_token_suffices(model) is (change in ATTENTION)
    assert_same_function(model)


def test_a_model_that_reads_all_tokens_itself_is_left_as_it_is() -> None:
    vit = transformer()
    assert_same_function(Through(nn.Identity(), after=lambda _, x: vit.head(vit.forward_features(x).mean(1))))
    assert not fused_ops.class_token_suffices(transformer(proj_drop_rate=0.5).train())


def test_where_timms_attention_is_patched_the_model_is_left_as_it_is(monkeypatch) -> None:
    """By its looks the model is timm's own; the first images show that it is not."""
    model, own = transformer(), Attention.forward
    monkeypatch.setattr(Attention, "forward", lambda self, x: own(self, x) - own(self, x).mean(1, keepdim=True))
    assert fused_ops.class_token_suffices(model)
    assert_same_function(model)


@pytest.mark.skipif(arithmetic.in_force() == "portable", reason="portable products round by place: test_native.py runs it")
@pytest.mark.parametrize(("norm", "eps"), [("Linf", 0.1), ("L2", 0.5)])
def test_slots_and_company_change_no_bit(norm, eps) -> None:
    assert_slots_and_company_change_no_bit(transformer(), images(), ThreatModel(norm=norm, eps=eps))
