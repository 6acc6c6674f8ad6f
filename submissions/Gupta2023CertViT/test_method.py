"""CertViT's networks: the paper's parameter counts, to the unit."""

from __future__ import annotations

import pytest
import torch

from benchmark.specs.data import DataSpec
from benchmark.specs.methods import method

build = method("Gupta2023CertViT").build
MNIST, CIFAR10, CIFAR100, TINY = (1, 28, 28, 10), (3, 32, 32, 10), (3, 32, 32, 100), (3, 64, 64, 200)


def data(channels: int, height: int, width: int, classes: int) -> DataSpec:
    return DataSpec(source="digits", shape=(channels, height, width), classes=classes, validation=1, test=1)


@pytest.mark.parametrize(
    ("images", "options", "count"),
    [
        (MNIST, {"network": "4c3f"}, 1_973_536),
        (CIFAR10, {"network": "4c3f", "activation": "clipped_relu"}, 2_528_096),
        (CIFAR10, {"network": "6c2f", "activation": "clipped_relu"}, 2_360_672),
        (CIFAR100, {"network": "8c2f", "channels": 64, "hidden": 256, "activation": "clipped_relu"}, 2_436_864),
        (TINY, {"network": "8c2f", "channels": 64, "hidden": 256, "activation": "clipped_relu"}, 5_257_984),
        (MNIST, {"network": "vit", "patch_size": 7, "width": 128, "depth": 6, "heads": 8}, 1_094_528),
        (CIFAR10, {"network": "vit"}, 4_086_912),
        (CIFAR100, {"network": "vit", "depth": 12}, 4_916_736),
        (TINY, {"network": "vit", "width": 384, "depth": 12, "heads": 12, "mlp_ratio": 1.0}, 9_060_864),
    ],
)
def test_the_nine_parameter_counts_of_the_paper(images, options, count) -> None:
    model = build(data(*images), **options)
    assert sum(p.numel() for p in model.parameters()) == count
    with torch.no_grad():
        assert model(torch.rand(1, *images[:3])).shape == (1, images[3])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"network": "5c3f"}, "network '5c3f' is none of 4c3f, 6c2f, 8c2f, vit, swin"),
        ({"network": "4c3f", "activation": "gelu"}, "activation 'gelu' is none of"),
        ({"network": "8c2f"}, "too small for the strides of 8c2f"),
        ({"network": "vit", "patch_size": 3}, "patch_size 3 does not tile 8x8"),
        ({"network": "vit", "norm": "batch"}, "norm 'batch' is none of"),
    ],
)
def test_options_that_fit_nothing_are_refused(options, words) -> None:
    with pytest.raises(ValueError, match=words):
        build(data(1, 8, 8, 10), **options)


@pytest.mark.parametrize("norm", ["layernorm", "project", "none"])
@pytest.mark.parametrize("attention", ["dot_product", "l2"])
@pytest.mark.parametrize("pooling", ["class", "mean"])
def test_every_transformer_runs(norm, attention, pooling) -> None:
    options = {"patch_size": 4, "width": 16, "depth": 1, "heads": 2, "norm": norm, "attention": attention}
    model = build(data(1, 8, 8, 10), network="vit", pooling=pooling, **options)
    logits = model(torch.rand(3, 1, 8, 8))
    assert logits.shape == (3, 10)
    assert torch.isfinite(logits).all()
