"""Attention is found and replaced in every layer that has any, and nowhere else."""

from __future__ import annotations

import warnings

import pytest
import torch
from tiny_models import Through
from torch import nn

from benchmark.attacks.replaced_attention import (
    OtherPatterns,
    ReplacedAttention,
    mean_patterns,
    patterns,
    predictions_with,
    predictions_with_patterns,
    replaced_attention,
)
from benchmark.layers.attention import LipschitzNormAttention, ResidualAttention, SelfAttention
from benchmark.layers.attention_l2 import L2Attention, ReleasedL2Attention
from benchmark.layers.attention_window import DotProductWindowAttention
from benchmark.layers.competitive_attention import CompetitiveAttention, ConeAttention, MaxMinTokens
from benchmark.layers.scaled_cosine import ScaledCosineAttention

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)  # timm 1.0.9 decorates with torch.jit, which torch deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from timm.models.cait import Cait
    from timm.models.swin_transformer import SwinTransformer
    from timm.models.vision_transformer import VisionTransformer
    from timm.models.xcit import Xcit


class Torchs(nn.MultiheadAttention):
    """Its fast path computes a layer in one call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x, x, x, need_weights=False)[0]


def encoder() -> nn.Module:
    block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    tokens = (nn.Conv2d(3, 16, 4, 4), nn.Flatten(2), Through(nn.Identity(), lambda x: x.mT))
    return nn.Sequential(*tokens, nn.TransformerEncoder(block, 2), nn.Flatten(), nn.LazyLinear(10))


TOKENS, SMALL, LARGE = (5, 9, 16), (8, 3, 8, 8), (8, 3, 16, 16)
CASES = {  # with how many softmaxes each has, and the shape of its input
    "self": (1, TOKENS, lambda: SelfAttention(16, 4)),
    "residual": (1, TOKENS, lambda: ResidualAttention(16, 4, qk_norm=3.0, vo_norm=1.0)),
    "l2": (1, TOKENS, lambda: L2Attention(16, 4)),
    "l2 as released": (1, TOKENS, lambda: ReleasedL2Attention(16, 4)),
    "scaled cosine": (1, TOKENS, lambda: ScaledCosineAttention(16, 4, eps=1e-6, tau=5.0)),
    "Lipschitz norm": (1, TOKENS, lambda: LipschitzNormAttention(16, 4)),
    "window": (1, TOKENS, lambda: DotProductWindowAttention(16, 4, side=3, window=3)),
    "torch's": (1, TOKENS, lambda: Torchs(16, 4, batch_first=True)),
    "ViT": (2, SMALL, lambda: VisionTransformer(8, 4, 3, 10, embed_dim=16, depth=2, num_heads=2)),
    "Swin": (2, LARGE, lambda: SwinTransformer(16, 2, 3, 10, embed_dim=8, depths=(2,), num_heads=(2,), window_size=4)),
    "XCiT": (4, LARGE, lambda: Xcit(img_size=16, patch_size=8, num_classes=10, embed_dim=16, depth=2, num_heads=2)),
    "CaiT": (4, SMALL, lambda: Cait(8, 4, 3, 10, embed_dim=16, depth=2, num_heads=2)),
    "torch's encoder": (2, SMALL, encoder),
}


def by_hand(monkeypatch, weights: str, model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The output with torch's own functions replaced, as Python names them."""

    def mean(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        over = v.mean(-2, keepdim=True) if weights == "uniform" else torch.zeros_like(v[..., :1, :])
        return over.expand(*q.shape[:-1], v.shape[-1])

    def alike(scores: torch.Tensor, dim: int, **_: object) -> torch.Tensor:
        return torch.full_like(scores, 1 / scores.shape[dim] if weights == "uniform" else 0.0)

    with monkeypatch.context() as patched, torch.no_grad():
        patched.setattr(torch.nn.functional, "scaled_dot_product_attention", mean)
        for home in (torch.Tensor, torch, torch.nn.functional):
            patched.setattr(home, "softmax", alike)
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            return model(x)
        finally:
            torch.backends.mha.set_fastpath_enabled(True)


@pytest.mark.parametrize("weights", ["uniform", "none"])
@pytest.mark.parametrize("name", CASES)
def test_every_attention_averages_all_values_or_gets_none(name, weights, monkeypatch) -> None:
    torch.manual_seed(0)
    count, shape, build = CASES[name]
    model, x = build().eval(), 2 * torch.randn(shape)
    with torch.no_grad():
        own = model(x)
    with replaced_attention(weights) as mode:
        changed = model(x)
    torch.testing.assert_close(changed, by_hand(monkeypatch, weights, model, x))
    assert mode.replaced == count
    if shape is TOKENS:
        assert not torch.allclose(changed, own, atol=1e-3)
    else:
        wrapped = ReplacedAttention(model, weights)
        assert torch.equal(wrapped(x), changed)
        assert wrapped.replaced == count
    with torch.no_grad():
        assert torch.equal(model(x), own), "nothing is left of the replacement"


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 10)),
        nn.Sequential(nn.Flatten(), nn.Linear(192, 10), nn.Softmax(1)),
    ],
    ids=["convolution", "softmax over classes"],
)
def test_a_network_without_attention_is_left_alone(model) -> None:
    images = torch.rand(9, 3, 8, 8)
    assert predictions_with("uniform", model, images, 4) is None
    assert torch.equal(ReplacedAttention(model, "none")(images), model(images))


def test_what_a_mask_leaves_is_averaged() -> None:
    q, k, v = (torch.randn(2, 3, 4, 5) for _ in range(3))
    with replaced_attention("uniform") as mode:
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert mode.replaced == 1
    for token in range(4):
        torch.testing.assert_close(out[:, :, token], v[:, :, : token + 1].mean(2))


def competition() -> nn.Module:
    torch.manual_seed(0)
    layers = [CompetitiveAttention(20, 2, side=3, window=5), ConeAttention(20, 2, side=3, window=5), MaxMinTokens(3, 10)]
    return nn.Sequential(nn.Flatten(1, 2), *layers, nn.Flatten(), nn.Linear(180, 4)).requires_grad_(False)


@pytest.mark.parametrize("weights", ["uniform", "none"])
def test_patterns_that_layers_make_known_are_replaced(weights) -> None:
    model, images = competition(), torch.randn(5, 1, 9, 20)
    with replaced_attention(weights) as mode:
        changed = model(images)
    assert mode.replaced == 3
    if weights == "none":
        torch.testing.assert_close(changed, model[-1](images.flatten(1)))
    assert not torch.allclose(changed, model(images), atol=1e-3)


def test_other_patterns_are_the_means_or_those_of_the_image_before() -> None:
    model, images = competition(), torch.randn(6, 1, 9, 20)
    own = model(images).argmax(1)
    alike = images[:1].expand(6, -1, -1, -1)
    assert [tuple(part.shape) for part in patterns(model, images)] == [(6, 1, 3, 3, 2, 5)] * 2 + [(6, 1, 3, 3, 10)]
    means = mean_patterns(model, images, 4)
    torch.testing.assert_close(means[0], patterns(model, images)[0].double().mean(0, keepdim=True))
    for given in (means, None):
        changed = predictions_with_patterns(given, model, images, 6)
        assert changed.shape == (6,)
        assert not torch.equal(OtherPatterns(model, given)(images), model(images))
    torch.testing.assert_close(OtherPatterns(model, mean_patterns(model, alike, 4))(alike), model(alike))
    torch.testing.assert_close(OtherPatterns(model, None)(alike), model(alike))
    # the patterns of an unchanged pass, also in the layers after the first
    pairs = torch.cat([images[1:2], images[:1]])
    given = [part[[1, 0]] for part in patterns(model, pairs)]
    torch.testing.assert_close(OtherPatterns(model, None)(pairs), OtherPatterns(model, given)(pairs))
    assert torch.equal(model(images).argmax(1), own)
    assert patterns(nn.Sequential(nn.Linear(4, 2)), torch.rand(1, 4)) == []


@pytest.mark.parametrize("name", [name for name, (_, shape, _) in CASES.items() if shape is not TOKENS])
def test_a_softmax_is_replaced_by_its_mean_or_by_that_of_the_image_before(name) -> None:
    torch.manual_seed(0)
    count, shape, build = CASES[name]
    model, images = build().eval().double(), 2 * torch.randn(6, *shape[1:]).double()
    seen, own = patterns(model, images), model(images).detach()
    assert [len(part) for part in seen] == [6] * count
    alike = images[:1].expand_as(images)
    torch.testing.assert_close(OtherPatterns(model, mean_patterns(model, alike, 4))(images[:1]), own[:1])
    torch.testing.assert_close(OtherPatterns(model, None)(alike), own[:1].expand_as(own))
    before = [part[5:] for part in seen]  # as means, the last image's patterns for the first one
    torch.testing.assert_close(OtherPatterns(model, None)(images)[:1], OtherPatterns(model, before)(images[:1]))
    assert not torch.allclose(OtherPatterns(model, before)(images[:1]), own[:1], rtol=0, atol=1e-10)


def test_attention_over_images_has_no_pattern_of_an_image() -> None:
    model = Through(nn.Softmax(-1), lambda x: x.flatten(2).transpose(0, 1), lambda w, x: (w @ w.mT).sum((0, 2)))
    assert patterns(model, torch.rand(5, 2, 3, 3)) == []


@pytest.mark.parametrize(("weights", "divided"), [("uniform", False), ("none", True)])
def test_ties_and_logits_that_are_not_finite_give_no_class(weights, divided) -> None:
    """Uniform weights give every class the same; none, divided by their sum, are not finite."""

    def classes(w: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return (w / w.sum(-1, keepdim=True) if divided else w)[:, :, :4].sum(1)

    model = Through(nn.Softmax(-1), lambda x: x.flatten(2), classes)
    assert predictions_with(weights, model, torch.rand(3, 2, 3, 3), 3).tolist() == [-1, -1, -1]


def test_the_fast_path_is_restored_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), replaced_attention("none"):
        raise ZeroDivisionError
    assert torch.backends.mha.get_fastpath_enabled()
