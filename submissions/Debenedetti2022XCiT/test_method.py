"""The thesis' counts, cross-covariance attention against its formula, and what adversarial training needs of the networks."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import methods, submissions, tracks
from benchmark.specs.data import DataSpec

NAME = "Debenedetti2022XCiT"
SMALL = {"patch_size": 8, "stride_one": 2, "width": 16, "depth": 2, "heads": 2, "initial": "torch"}
ARCHITECTURES = ("xcit", "deit", "cait", "resnet50")


def build(side: int = 8, channels: int = 1, classes: int = 10, **model) -> nn.Module:
    data = DataSpec(source="digits", validation=1, shape=(channels, side, side), classes=classes)
    torch.manual_seed(0)
    return methods.method(NAME).build(data, **model)


def small(architecture: str, **changes) -> nn.Module:
    sizes = {"width": 8, "depth": 4} if architecture == "resnet50" else {}
    return build(architecture=architecture, **{**SMALL, **sizes, **changes})


def parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(
    ("millions", "model"),
    [
        (26.25, {"width": 384, "heads": 8}),  # XCiT-S12; page 28 of the thesis, as those below
        (22.05, {"architecture": "deit", "width": 384, "heads": 6}),
        (25.61, {"architecture": "cait", "width": 384, "heads": 8}),
        (25.56, {"architecture": "resnet50", "width": 64}),
    ],
)
def test_full_networks_have_the_thesis_parameters(millions, model) -> None:
    if model.get("architecture") == "resnet50":
        with torch.device("meta"):
            total = parameters(build(224, 3, 1000, **model))
    else:  # every block is alike: two small networks tell the rest
        one, two = (parameters(build(224, 3, 1000, depth=depth, **model)) for depth in (1, 2))
        total = one + 11 * (two - one)
    assert total / 1e6 == pytest.approx(millions, abs=0.006)


def test_cross_covariance_attention_is_its_formula() -> None:
    """Equation (15): each channel of a head becomes a mean of that head's channels, weighted by how alike they are over
    the tokens; here entry by entry in float64.
    """
    attention = small("xcit")[1].blocks[0].attn.double().eval()
    nn.init.uniform_(attention.temperature, 0.5, 2.0)
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    heads, size = 2, 8
    expected = torch.zeros_like(x)
    for image in range(2):
        qkv = x[image] @ attention.qkv.weight.T + attention.qkv.bias
        q, k, v = (part.view(5, heads, size) for part in qkv.split(16, dim=1))
        for head in range(heads):
            for i in range(size):
                alike = [functional.cosine_similarity(q[:, head, i], k[:, head, j], dim=0) for j in range(size)]
                weights = (attention.temperature[head, 0, 0] * torch.stack(alike)).softmax(0)
                expected[image, :, head * size + i] = v[:, head] @ weights
    expected = expected @ attention.proj.weight.T + attention.proj.bias
    assert torch.allclose(attention(x), expected, atol=1e-12)
    order = torch.randperm(5)
    assert torch.allclose(attention(x[:, order]), attention(x)[:, order], atol=1e-12), "it mixes tokens only as a set"


@pytest.mark.parametrize(
    ("side", "model", "tokens"),
    [
        (8, SMALL, 16),
        (32, {"patch_size": 16, "stride_one": 2, "width": 32}, 64),  # the thesis: patch 4 of CIFAR-10
        (32, {"patch_size": 16, "stride_one": 0, "width": 32}, 4),
    ],
)
def test_the_stem_gives_as_many_tokens_as_its_strides_leave(side, model, tokens) -> None:
    stem = build(side, **model)[1].patch_embed
    found, (height, width) = stem(torch.rand(2, 1, side, side))
    assert found.shape[1] == stem.num_patches == height * width == tokens
    for other in ("deit", "cait"):
        assert build(side, architecture=other, **model)[1].patch_embed.num_patches == tokens
    strides = [m.stride for m in stem.modules() if isinstance(m, nn.Conv2d)]
    assert strides == [(1, 1)] * model["stride_one"] + [(2, 2)] * (len(strides) - model["stride_one"])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_evaluation_is_deterministic_and_of_each_image_by_itself(architecture) -> None:
    model = small(architecture, drop_path=0.3).eval()
    images = torch.rand(9, 1, 8, 8)
    assert torch.equal(model(images), model(images))
    assert torch.allclose(model(images)[3:4], model(images[3:4].repeat(9, 1, 1, 1))[:1], atol=1e-5)  # rounding


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_gradients_reach_every_parameter_and_pixel(architecture) -> None:
    model = small(architecture).train()
    for name, p in model.named_parameters():
        if architecture == "resnet50" and "bn3.weight" in name:  # which timm starts at 0: it stops those inside
            nn.init.ones_(p)
    images = torch.rand(8, 1, 8, 8, requires_grad=True)
    model(images).square().sum().backward()
    assert images.grad is not None
    assert images.grad.abs().amin((1, 2, 3)).gt(0).all()
    without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not without


def test_resnet_has_gelu_alone_and_no_pooling_on_small_images() -> None:
    kinds = {type(module).__name__ for module in small("resnet50").modules()}
    assert "GELU" in kinds
    assert not kinds & {"ReLU", "MaxPool2d"}
    assert "MaxPool2d" in {type(module).__name__ for module in small("resnet50", stride_one=0).modules()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architecture": "xcitt"}, "unknown architecture 'xcitt'"),
        ({"initial": "random"}, "unknown initial weights 'random'"),
        ({"patch_size": 4}, "for patch_size 8 or 16, not 4"),
        ({"stride_one": 3}, "stride_one 3 should be fewer"),
        ({"architecture": "deit", "stride_one": 4}, "does not tile 8 pixels"),
        ({"architecture": "resnet50", "depth": 3}, "leaves one of them empty"),
    ],
)
def test_options_that_do_not_fit_are_refused(change, message) -> None:
    with pytest.raises(ValueError, match=message):
        build(**{**SMALL, **change})


def test_the_rows_are_built_by_their_settings() -> None:
    track, submission = tracks.load("digits"), submissions.load(NAME)
    for name, variant in submission.variants.items():
        for entered, settings in variant.tracks.items():
            made = methods.build(submission, name, tracks.load(entered))
            assert len(made[1].blocks) == settings.model["depth"]
    with pytest.raises(BenchmarkError, match="has no variant"):
        methods.build(submission, "adversarially", track)
