"""Attention is found and replaced in every layer that has any, and nowhere else."""

from __future__ import annotations

import warnings
from collections.abc import Callable

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

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "self": lambda: SelfAttention(16, 4),
    "residual": lambda: ResidualAttention(16, 4, qk_norm=3.0, vo_norm=1.0),
    "l2": lambda: L2Attention(16, 4),
    "l2 as released": lambda: ReleasedL2Attention(16, 4),
    "scaled cosine": lambda: ScaledCosineAttention(16, 4, eps=1e-6, tau=5.0),
    "Lipschitz norm": lambda: LipschitzNormAttention(16, 4),
    "window": lambda: DotProductWindowAttention(16, 4, side=3, window=3),
    "torch's": lambda: Torchs(),
}
NETWORKS: dict[str, tuple[int, Callable[[], nn.Module]]] = {  # with how many softmaxes each has
    "ViT": (2, lambda: VisionTransformer(8, 4, 3, 10, embed_dim=16, depth=2, num_heads=2)),
    "Swin": (2, lambda: SwinTransformer(16, 2, 3, 10, embed_dim=8, depths=(2,), num_heads=(2,), window_size=4)),
    "XCiT": (4, lambda: Xcit(img_size=16, patch_size=8, num_classes=10, embed_dim=16, depth=2, num_heads=2)),
    "CaiT": (4, lambda: Cait(8, 4, 3, 10, embed_dim=16, depth=2, num_heads=2)),
    "torch's encoder": (2, lambda: encoder()),
}


class Torchs(nn.Module):
    """torch.nn.MultiheadAttention, whose fast path computes a layer in one call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x, x, x, need_weights=False)[0]


def encoder() -> nn.Module:
    block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    tokens = (nn.Conv2d(3, 16, 4, 4), nn.Flatten(2), Through(nn.Identity(), lambda x: x.mT))
    return nn.Sequential(*tokens, nn.TransformerEncoder(block, 2), nn.Flatten(), nn.LazyLinear(10))


def by_hand(monkeypatch, weights: str, model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """With torch's own functions replaced, as Python names them."""

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
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_averages_all_values_or_gets_none(name, weights, monkeypatch) -> None:
    torch.manual_seed(0)
    layer, x = LAYERS[name]().eval(), 2 * torch.randn(5, 9, 16)
    with torch.no_grad():
        own = layer(x)
    with replaced_attention(weights) as mode:
        changed = layer(x)
    torch.testing.assert_close(changed, by_hand(monkeypatch, weights, layer, x))
    assert mode.replaced == 1
    assert not torch.allclose(changed, own, atol=1e-3)
    with torch.no_grad():
        assert torch.equal(layer(x), own), "nothing is left of the replacement"


@pytest.mark.parametrize("weights", ["uniform", "none"])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_softmax_over_tokens_or_channels_is_found(name, weights, monkeypatch) -> None:
    torch.manual_seed(0)
    count, build = NETWORKS[name]
    side = 8 if name in ("ViT", "CaiT", "torch's encoder") else 16
    x = torch.rand(8, 3, side, side)
    model = build().eval()
    model(x)
    changed = ReplacedAttention(model, weights)
    torch.testing.assert_close(changed(x), by_hand(monkeypatch, weights, model, x))
    assert changed.replaced == count


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
    changed = ReplacedAttention(model, "none")
    assert torch.equal(changed(images), model(images))


def test_what_a_mask_leaves_is_averaged() -> None:
    q, k, v = (torch.randn(2, 3, 4, 5) for _ in range(3))
    with replaced_attention("uniform") as mode:
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert mode.replaced == 1
    for token in range(4):
        torch.testing.assert_close(out[:, :, token], v[:, :, : token + 1].mean(2))


def competition() -> nn.Module:
    torch.manual_seed(0)
    layers = [
        CompetitiveAttention(20, 2, side=3, window=5),
        ConeAttention(20, 2, side=3, window=5),
        MaxMinTokens(3, 10),
    ]
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
    assert [tuple(part.shape) for part in patterns(model, images)] == [(6, 3, 3, 2, 5)] * 2 + [(6, 3, 3, 10)]
    means = mean_patterns(model, images, 4)
    torch.testing.assert_close(means[0], patterns(model, images)[0].double().mean(0, keepdim=True))
    for given in (means, None):
        changed = predictions_with_patterns(given, model, images, 6)
        assert changed.shape == (6,)
        assert not torch.equal(OtherPatterns(model, given)(images), model(images))
    same = mean_patterns(model, alike, 4)
    torch.testing.assert_close(OtherPatterns(model, same)(alike), model(alike))
    torch.testing.assert_close(OtherPatterns(model, None)(alike), model(alike))
    # the patterns of an unchanged pass, also in the layers after the first
    pairs = torch.cat([images[1:2], images[:1]])
    given = [part[[1, 0]] for part in patterns(model, pairs)]
    torch.testing.assert_close(OtherPatterns(model, None)(pairs), OtherPatterns(model, given)(pairs))
    assert torch.equal(model(images).argmax(1), own)
    assert patterns(nn.Sequential(nn.Linear(4, 2)), torch.rand(1, 4)) == []


def scores(divided: bool) -> nn.Module:
    """Uniform weights give every class the same; none, divided by their sum, are not finite."""

    def classes(weights: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return (weights / weights.sum(-1, keepdim=True) if divided else weights)[:, :, :4].sum(1)

    return Through(nn.Softmax(-1), lambda x: x.flatten(2), classes)


@pytest.mark.parametrize(("weights", "divided"), [("uniform", False), ("none", True)])
def test_ties_and_logits_that_are_not_finite_are_nobodys_class(weights, divided) -> None:
    assert predictions_with(weights, scores(divided), torch.rand(3, 2, 3, 3), 3).tolist() == [-1, -1, -1]


def test_the_fast_path_is_as_it_was_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), replaced_attention("none"):
        raise ZeroDivisionError
    assert torch.backends.mha.get_fastpath_enabled()
