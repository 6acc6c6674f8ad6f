"""ViT and CoViT: the paper's sizes, its misprinted equation (5), and what a convolution over tokens keeps."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from benchmark.attacks import pgd
from benchmark.certificates import local
from benchmark.specs import methods, tracks
from benchmark.specs.data import DataSpec
from benchmark.specs.threat import ThreatModel

NAME = "Wang2022Cauchy"
SIZES = {
    ("attention", 4): 918_410, ("3", 4): 917_386, ("3,3,3,3", 4): 769_930,
    ("attention", 8): 1_711_498, ("3", 8): 1_709_450, ("3,3,3,3", 8): 1_414_538,
}  # fmt: skip
SMALL = {"patch_size": 2, "width": 16, "depth": 2}


def data(**change) -> DataSpec:
    return tracks.load("digits").data.model_copy(update=change)


def build(**model) -> nn.Sequential:
    torch.manual_seed(0)
    return methods.method(NAME).build(data(), **{**SMALL, **model}).eval().requires_grad_(False)


@pytest.mark.parametrize(("mixer", "depth"), SIZES)
def test_the_tiny_models_of_the_paper_have_its_parameters(mixer, depth) -> None:
    chosen = {"mixer": "attention"} if mixer == "attention" else {"mixer": "convolution", "kernels": mixer}
    made = methods.method(NAME).build(data(shape=(3, 32, 32)), patch_size=16, width=128, depth=depth, resize=224, **chosen)
    assert sum(p.numel() for p in made.parameters()) == SIZES[mixer, depth]


def test_every_head_shares_the_width_and_tokens_may_lack_a_class_token() -> None:
    count = {sum(p.numel() for p in build(mixer="attention", heads=heads).parameters()) for heads in (1, 2, 4)}
    assert len(count) == 1
    with_token, without = (build(mixer="none", pooling=pooling) for pooling in ("mean_all", "mean"))
    assert sum(p.numel() for p in with_token.parameters()) - sum(p.numel() for p in without.parameters()) == 2 * 16


def test_equation_5_as_it_must_read() -> None:
    a, z = 0.7, torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))

    def attention(z: torch.Tensor) -> torch.Tensor:
        return torch.softmax(a * torch.outer(z, z), -1) @ z

    P = torch.softmax(a * torch.outer(z, z), -1)
    mu, D = P @ z, torch.diag(z)
    variance = P @ z**2 - mu**2
    J = torch.autograd.functional.jacobian(attention, z)
    assert (J - (P + a * (D @ P @ D - torch.diag(mu) @ D @ P + torch.diag(variance)))).abs().max() < 1e-12
    printed = P + a * (D @ P @ D - P @ D @ torch.diag(mu) + torch.diag(variance))
    assert (J - printed).abs().max() > 0.01, "as printed it is another matrix"


def test_a_convolution_moves_with_the_tokens_away_from_the_border_and_the_class_token() -> None:
    model = build(mixer="convolution", kernels="3,3", pooling="mean")
    mixer = model[4]  # Residual(LayerNorm, TokenConvolution, Linear) acts on each place alike
    x = torch.randn(2, 16, 16, generator=torch.Generator().manual_seed(0))
    shifted = torch.roll(x, 1, dims=1)
    torch.testing.assert_close(mixer(shifted)[:, 2:-1], mixer(x)[:, 1:-2])
    assert not torch.allclose(mixer(shifted)[:, 0], mixer(x)[:, -1]), "the border does not wrap around"
    with_token = build(mixer="convolution", kernels="3,3")
    tokens = torch.randn(1, 17, 16, generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[:, 0] += torch.randn(16, generator=torch.Generator().manual_seed(1))
    moved = (with_token[5](changed) - with_token[5](tokens)).abs().amax(2)[0]
    assert (moved[:2] > 0).all(), "the class token is the first patch's neighbour"
    assert not moved[2:].any()


@pytest.mark.parametrize("mixer", ["attention", "convolution", "none"])
@pytest.mark.parametrize("certified", [False, True])
def test_blocks_follow_one_another_through_the_whole_encoder(mixer, certified) -> None:
    model = build(mixer=mixer, certified=certified, depth=3)
    found = methods.method(NAME).blocks(model)
    assert [name for name, _ in found] == ["block 1", "block 2", "block 3"]
    layers = [layer for _, block in found for layer in block]
    places = [next(i for i, layer in enumerate(model) if layer is one) for one in layers]
    assert all(b == a + 1 for a, b in pairwise(places)), "nothing stands between blocks"
    x = torch.randn(1, 17, 16)
    assert all(block(x).shape == x.shape for _, block in found)


def test_the_certified_network_is_certified_and_keeps_its_radii_under_attack() -> None:
    model = build(mixer="convolution", certified=True, patch_size=4, kernels="3")
    images = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    labels = model(images).argmax(1)
    found = local.certified_at(model, images, labels, 0.02)
    assert found.any()
    threat = ThreatModel(norm="L2", eps=0.02)
    moved = pgd.attack(model, images, labels, threat, seed=0, steps=40, step_size=0.005)
    assert (model(moved).argmax(1) == labels)[found].all()


def test_without_a_residual_the_bounded_convolution_starts_near_the_identity() -> None:
    model = build(mixer="convolution", certified=True, norm=1.0, residual=False, patch_size=4)
    x = torch.randn(3, 4, 16, generator=torch.Generator().manual_seed(0))
    ratio = (model[4](x) - x).norm() / x.norm()
    assert 0 < ratio < 0.5
    assert len(methods.method(NAME).blocks(model)) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mixer": "attenton"}, "mixer 'attenton' should be one of attention, convolution, none"),
        ({"mixer": "convolution", "kernels": "3,3,3"}, "3 kernels do not divide a width of 16"),
        ({"mixer": "convolution", "kernels": "4"}, "kernel 4 should be odd"),
        ({"mixer": "attention", "heads": 3}, "3 heads do not divide width 16"),
        ({"mixer": "none", "patch_size": 3}, "do not fit 8x8 images"),
        ({"mixer": "none", "resize": 12}, "patch_size 2 and resize 12 do not fit 8x8 images"),
        ({"mixer": "none", "pooling": "max"}, "pooling 'max' should be one of mean_all, mean"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, words) -> None:
    with pytest.raises(ValueError, match=words):
        build(**options)
