"""CertViT's Swin: timm's sizes to the unit, and timm's networks as what it is distilled from."""

from __future__ import annotations

import pytest
import torch
from timm.models.swin_transformer import SwinTransformer
from torch import nn

from benchmark.layers.attention_window import DotProductWindowAttention, L2WindowAttention, WindowAttention
from benchmark.layers.normalise import Normalise
from benchmark.layers.tokens import MergeTokens
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.data import DataSpec
from benchmark.specs.methods import method, module
from benchmark.training.preparation import Place

build = method("Gupta2023CertViT").build
prepare = module("Gupta2023CertViT", "l2_distillation").prepare
counterparts = module("Gupta2023CertViT", "counterparts").counterparts
window_attention = module("Gupta2023CertViT", "attention_inputs").window_attention
SMALL = {"network": "swin", "patch_size": 1, "width": 8, "depths": "2,2", "heads": 2, "window": 2, "std": 0.5}


def data(channels: int = 1, side: int = 8, classes: int = 10) -> DataSpec:
    return DataSpec(source="digits", shape=(channels, side, side), classes=classes, validation=1, test=1)


def count(model: nn.Module, *, attention: bool = True) -> int:
    inside = sum(p.numel() for part in model.modules() if isinstance(part, WindowAttention) for p in part.parameters())
    return sum(p.numel() for p in model.parameters()) - (0 if attention else inside)


def timm_swin() -> nn.Sequential:
    """timm's network of the sizes of SMALL, with weights and biases of some size."""
    torch.manual_seed(0)
    images = {"img_size": 8, "patch_size": 1, "in_chans": 1, "num_classes": 10}
    swin = SwinTransformer(**images, embed_dim=8, depths=(2, 2), num_heads=(2, 4), window_size=2)
    with torch.no_grad():
        for parameter in swin.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    return nn.Sequential(Normalise(), swin).eval().requires_grad_(False)


def attention(model: nn.Module) -> list[WindowAttention]:
    return [part for part in model.modules() if isinstance(part, WindowAttention)]


@pytest.mark.parametrize(
    ("width", "depths", "heads", "parameters"),
    [
        (96, "2,2,6,2", 3, 28_288_354),
        (96, "2,2,18,2", 3, 49_606_258),
        (128, "2,2,18,2", 4, 87_768_224),
        (192, "2,2,18,2", 6, 196_532_476),
    ],
)
def test_timms_four_sizes_have_timms_counts(width, depths, heads, parameters) -> None:
    """swin_{tiny,small,base,large}_patch4_window7_224; outside attention the one with L2 attention has as many."""
    options = {"network": "swin", "patch_size": 4, "width": width, "depths": depths, "heads": heads, "window": 7}
    with torch.device("meta"):
        dot, l2 = (build(data(3, 224, 1000), **options, biases=True, attention=kind) for kind in ("dot_product", "l2"))
    assert count(dot) == parameters
    assert count(l2, attention=False) == count(dot, attention=False)
    blocks = attention(l2)
    assert [part.side for part in blocks][:3] == [56, 56, 28]
    assert {part.window for part in blocks} == {7}
    assert [part.shift for part in blocks] == [0, 3] * (len(blocks) // 2 - 1) + [0, 0]


def test_a_small_one_has_the_layers_of_timms() -> None:
    model = build(data(), **SMALL, biases=True, attention="dot_product")
    assert count(model) == count(timm_swin())
    assert [(part.side, part.shift) for part in attention(model)] == [(8, 0), (8, 1), (4, 0), (4, 1)]
    assert {part.window for part in attention(model)} == {2}
    without = build(data(), **SMALL, norm="none")
    assert not any(isinstance(part, nn.LayerNorm) for part in without.modules())
    assert sum(isinstance(part, MergeTokens) for part in without) == 1
    linear = [part for part in without.modules() if isinstance(part, nn.Linear)]
    assert all(part.bias is None for part in linear)


@pytest.mark.parametrize("norm", ["layernorm", "none"])
@pytest.mark.parametrize("kind", ["dot_product", "l2"])
@pytest.mark.parametrize("window", [2, 4, 7])
def test_every_swin_runs_and_learns(norm, kind, window) -> None:
    model = build(data(), **{**SMALL, "window": window if window < 7 else 8, "norm": norm, "attention": kind})
    kinds = {"dot_product": DotProductWindowAttention, "l2": L2WindowAttention}
    assert {type(part) for part in attention(model)} == {kinds[kind]}
    logits = model(torch.rand(3, 1, 8, 8))
    assert logits.shape == (3, 10)
    logits.square().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.slow
def test_timms_network_is_copied_outside_attention_and_its_attention_put_back_gives_its_logits(tmp_path) -> None:
    start, model = timm_swin(), build(data(), **SMALL, biases=True)
    images = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    split = images, torch.zeros(40, dtype=torch.long)
    place = Place(tmp_path, 0, torch.device("cpu"), lambda _: None)
    history = prepare(model, start, split, place, layer_epochs=3, epochs=0, batch_size=20)
    blocks = [block for stage in start[1].layers for block in stage.blocks]
    assert [layer["of"] for layer in history["layers"]] == [
        f"1.layers.{stage}.blocks.{block}.attn" for stage in (0, 1) for block in (0, 1)
    ]
    assert history["left_out"] == []
    for layer in history["layers"]:
        assert layer["after"] < layer["before"] < 1
    wanted = start(images)
    assert not torch.allclose(model(images), wanted, atol=1e-2)
    same = build(data(), **SMALL, biases=True, attention="dot_product")
    same.load_state_dict(model.state_dict(), strict=False)
    for mine, block in zip(attention(same), blocks, strict=True):
        mine.load_state_dict(window_attention(block).state_dict())
    assert wanted.std() > 0.1
    assert torch.allclose(same(images), wanted, atol=1e-5)


def test_each_layer_is_fitted_to_what_timms_block_makes_of_its_tokens(tmp_path) -> None:
    """Relative errors are those of the layer against the block's own windows, roll and mask."""
    start, model = timm_swin(), build(data(), **SMALL, biases=True)
    images = torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    place = Place(tmp_path, 0, torch.device("cpu"), lambda _: None)
    history = prepare(model, start, (images, torch.zeros(12)), place, layer_epochs=1, epochs=0)
    block, seen = start[1].layers[0].blocks[1], []
    block.norm1.register_forward_hook(lambda _module, _given, out: seen.append(out))
    start(images)
    wanted = block._attn(seen[0]).flatten(1, 2)
    found = attention(model)[1](seen[0].flatten(1, 2))
    error = ((found - wanted).norm() / wanted.norm()).item()
    assert history["layers"][1]["after"] == pytest.approx(error, rel=1e-4)


def test_without_biases_timms_are_left_out_and_named() -> None:
    found = counterparts(timm_swin(), build(data(), **SMALL))
    assert len(found.left_out) == 10  # patch embedding, two in each of four MLPs, head
    assert all(name.endswith(".bias") for name in found.left_out)
    with pytest.raises(BenchmarkError, match="4 attention layers, this one 6"):
        counterparts(timm_swin(), build(data(), **{**SMALL, "depths": "2,4"}))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"patch_size": 3}, "patch_size 3 does not tile 8x8"),
        ({"window": 3}, "windows of 3x3 tokens do not tile 8x8"),
        ({"depths": "1,1,1,1,1"}, "2x2 tokens do not tile 1x1"),
        ({"depths": "2,0"}, "depths '2,0' should be the number of blocks of each stage"),
        ({"depths": ""}, "depths ''"),
        ({"norm": "project"}, "norm 'project' is none of layernorm, none"),
        ({"attention": "cosine"}, "attention 'cosine' is none of"),
        ({"heads": 3}, "3 heads do not divide width 8"),
    ],
)
def test_options_that_fit_nothing_are_refused(options, words) -> None:
    with pytest.raises(ValueError, match=words):
        build(data(), **{**SMALL, **options})
