"""SpecFormer's backbones and attentions: sizes and outputs of timm's, where timm has them."""

from __future__ import annotations

import warnings

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from benchmark.attacks import pgd
from benchmark.certificates import local
from benchmark.layers.attention_weights import attention_weights
from benchmark.specs import methods, tracks
from benchmark.specs.data import DataSpec
from benchmark.specs.threat import ThreatModel

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from timm.models.convit import GPSA, ConVit

NAME = "Hu2024SpecFormer"
IMAGENET = DataSpec(source="digits", seed=0, validation=1, test=1, shape=(3, 224, 224), classes=1000)
SIZES = {  # of the authors' backbones, at 224x224 with patches of 16 and 1,000 classes
    "ViT-S": (48_754_408, {"width": 768, "depth": 8, "heads": 8, "mlp_ratio": 3.0}),
    "DeiT-Ti": (5_717_416, {"backbone": "deit", "width": 192, "depth": 12, "heads": 3}),
    "ConViT-Ti": (5_710_512, {"backbone": "convit", "gated": 10, "width": 192, "depth": 12, "heads": 4}),
}
SMALL = {"patch_size": 2, "width": 16, "depth": 2, "heads": 2}
KINDS = ("dot_product", "l2", "lipschitz_norm", "scaled_cosine")


def build(**model) -> nn.Sequential:
    torch.manual_seed(0)
    return methods.method(NAME).build(tracks.load("digits").data, **{**SMALL, **model}).eval().requires_grad_(False)


def images(n: int = 3) -> torch.Tensor:
    return torch.rand(n, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.sweep
@pytest.mark.parametrize("name", SIZES)
def test_the_backbones_have_the_parameters_of_timms(name) -> None:
    size, model = SIZES[name]
    theirs = {
        "ViT-S": lambda: VisionTransformer(embed_dim=768, depth=8, num_heads=8, mlp_ratio=3.0, qkv_bias=False),
        "DeiT-Ti": lambda: VisionTransformer(embed_dim=192, depth=12, num_heads=3),
        "ConViT-Ti": lambda: ConVit(embed_dim=48, num_heads=4, local_up_to_layer=10),
    }[name]
    assert count(methods.method(NAME).build(IMAGENET, patch_size=16, **model)) == size
    assert count(theirs()) == size


def test_deit_is_timms_vision_transformer() -> None:
    """The same weights give the same logits."""
    ours = build(backbone="deit").double()
    theirs = VisionTransformer(
        img_size=8, patch_size=2, in_chans=1, num_classes=10, embed_dim=16, depth=2, num_heads=2
    ).double().eval()  # fmt: skip
    _, _, embed, token, positions, *blocks, norm, _, head = ours
    with torch.no_grad():
        theirs.patch_embed.proj.weight.copy_(embed.weight.view_as(theirs.patch_embed.proj.weight))
        theirs.patch_embed.proj.bias.copy_(embed.bias)
        theirs.cls_token.copy_(token.token)
        theirs.pos_embed.copy_(positions.offset[None])
        for (attention, mlp), block in zip(zip(blocks[::2], blocks[1::2], strict=True), theirs.blocks, strict=True):
            own = attention.body[1]
            parts = (own.query, own.key, own.value)
            block.attn.qkv.weight.copy_(torch.cat([part.weight for part in parts]))
            block.attn.qkv.bias.copy_(torch.cat([part.bias for part in parts]))
            block.attn.proj.load_state_dict(own.output.state_dict())
            block.mlp.fc1.load_state_dict(mlp.body[1].state_dict())
            block.mlp.fc2.load_state_dict(mlp.body[3].state_dict())
        theirs.norm.load_state_dict(norm.state_dict())
        theirs.head.load_state_dict(head.state_dict())
    x = images().double()
    assert torch.allclose(ours(x), theirs(2 * x - 1), atol=1e-12)


def test_gated_attention_is_timms_and_starts_like_it() -> None:
    ours = build(backbone="convit", gated=1, heads=4)[4].body[1].double()
    theirs = GPSA(16, num_heads=4).double()
    theirs.local_init()
    assert torch.equal(ours.position.weight, theirs.pos_proj.weight)
    assert torch.equal(ours.content.value.weight, theirs.v.weight)
    assert torch.equal(ours.gate, theirs.gating_param)
    with torch.no_grad():
        ours.gate.copy_(torch.tensor([-1.0, 0.0, 0.5, 2.0]))
        theirs.gating_param.copy_(ours.gate)
        theirs.qk.weight.copy_(torch.cat([ours.content.query.weight, ours.content.key.weight]))
        theirs.proj.load_state_dict(ours.content.output.state_dict())
        theirs.pos_proj.bias.copy_(ours.position.bias)
        x = torch.randn(2, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        theirs.rel_indices = theirs.get_rel_indices(16).double()
        assert torch.allclose(ours(x), theirs(x), atol=1e-12)


@pytest.mark.parametrize("pooling", ["class", "mean"])
@pytest.mark.parametrize("backbone", [{}, {"backbone": "deit"}, {"backbone": "convit", "gated": 1}])
@pytest.mark.parametrize("attention", KINDS)
def test_every_attention_runs_on_every_backbone_with_its_roles(attention, backbone, pooling) -> None:
    model = build(attention=attention, pooling=pooling, **backbone)
    assert model(images()).shape == (3, 10)
    layers = attention_weights(model)
    assert len(layers) == 2
    assert all((layer.key is None) == (attention == "l2") for layer in layers)
    assert all(layer.gamma is not None for layer in layers)


def test_lipsformer_starts_with_weights_of_norm_one_and_small_branches() -> None:
    model = build(attention="scaled_cosine")
    weights = [p for name, p in model.named_parameters() if ".body." in name and p.ndim == 2]
    assert len(weights) == 2 * 6
    assert all(torch.linalg.matrix_norm(weight, ord=2).item() == pytest.approx(1, abs=1e-5) for weight in weights)
    assert torch.equal(model[5].alpha, torch.full((16,), 0.2))


def test_scores_of_the_authors_vit_are_over_the_root_of_the_whole_width() -> None:
    assert build()[5].body[1].factor == pytest.approx(2**-0.5)
    assert build(backbone="deit")[5].body[1].factor == 1.0
    assert build()[5].body[1].query.bias is None


@pytest.mark.sweep
@pytest.mark.parametrize("attention", ["dot_product", "l2", "scaled_cosine"])
def test_what_is_certified_holds_under_pgd(attention) -> None:
    model = build(attention=attention, pooling="mean", normalised_head=True, patch_size=4, norm_eps=0.01, depth=1)
    x, y = images(2), model(images(2)).argmax(1)
    radii = local.certify(model, x, y, precision=0.3)
    assert (radii > 0).any()
    for i in torch.nonzero(radii > 0)[:, 0].tolist():
        threat = ThreatModel(norm="L2", eps=float(radii[i]))
        moved = pgd.attack(model, x[i : i + 1], y[i : i + 1], threat, seed=0, steps=30, step_size=threat.eps / 5)
        assert model(moved).argmax(1) == y[i]


def test_attention_with_normalised_scores_is_not_certified() -> None:
    model = build(attention="lipschitz_norm", normalised_head=True)
    with pytest.raises(Exception, match="no sound constant is known for LipschitzNormAttention"):
        local.certify(model, images(), torch.zeros(3, dtype=torch.long))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"attention": "l3"}, "attention 'l3' should be one of dot_product"),
        ({"backbone": "swin"}, "backbone 'swin' should be one of vit"),
        ({"pooling": "max"}, "pooling 'max' should be"),
        ({"patch_size": 3}, "does not tile"),
        ({"heads": 3}, "3 heads do not divide width 16"),
        ({"gated": 1}, "convit gates between 1"),
        ({"backbone": "convit"}, "convit gates between 1"),
        ({"backbone": "convit", "gated": 2}, "convit gates between 1"),
    ],
)
def test_options_that_do_not_fit_are_refused(bad, message) -> None:
    with pytest.raises(ValueError, match=message):
        build(**bad)
