"""Default encoder blocks of models, and the inputs that each receives."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
import torch
from torch import nn

from benchmark.layers.attention import ResidualAttention
from benchmark.layers.encoder_blocks import block_inputs, default_blocks
from benchmark.layers.lipschitz import BoundedLinear, NormalisedHead, SLLBlock, SmoothSLLBlock
from benchmark.layers.residual import Residual
from benchmark.layers.tokens import LayerProject, MeanPool, Patchify
from benchmark.layers.vit import vision_transformer
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.data import DataSpec

DIGITS = DataSpec(source="digits", seed=0, validation=40, test=40, shape=(1, 8, 8), classes=10)
IMAGES = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def frozen(model: nn.Module) -> nn.Module:
    return model.eval().requires_grad_(False)


def test_a_sequence_is_cut_at_its_residual_maps_in_order() -> None:
    attention = ResidualAttention(8, 2, qk_norm=1.0, vo_norm=0.5)
    inner = nn.Sequential(LayerProject(1.0), attention, SLLBlock(8, 16))
    mixer = Residual(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)))
    layers = [Patchify(4), BoundedLinear(16, 8), inner, mixer, SmoothSLLBlock(8, 8, bend=0.3), MeanPool()]
    model = frozen(nn.Sequential(*layers, NormalisedHead(8, 10)))
    blocks = default_blocks(model)
    assert [name for name, _ in blocks] == ["attention 1", "SLL 2", "residual 3", "SLL 4"]
    assert [module for _, module in blocks] == [model[2][1], model[2][2], model[3], model[4]]
    inputs = block_inputs(model, blocks, IMAGES)
    torch.testing.assert_close(inputs[0].tokens, model[2][0](model[1](model[0](IMAGES))))
    for block, after in pairwise(inputs):
        torch.testing.assert_close(block.at(block.tokens), after.tokens)
    whole = nn.Sequential(
        nn.Sequential(*model[2]), model[3], model[4]
    )  # put together afterwards: begins at its first module
    (block,) = block_inputs(model, [("encoder", whole)], IMAGES)
    torch.testing.assert_close(block.tokens, model[1](model[0](IMAGES)))
    torch.testing.assert_close(block.at(block.tokens), model[:-2](IMAGES))


def test_a_timm_transformer_is_cut_at_its_blocks_inside_a_sequence_too() -> None:
    model = frozen(vision_transformer(DIGITS, patch_size=4, width=16, depth=3, heads=2))
    for network in (model, model[1]):
        blocks = default_blocks(network)
        assert blocks == [(f"block {i + 1}", block) for i, block in enumerate(model[1].blocks)]
    inputs = block_inputs(model, blocks, IMAGES)
    assert [tuple(block.tokens.shape) for block in inputs] == [(3, 5, 16)] * 3
    last = model[1].norm(inputs[2].at(inputs[2].tokens))[:, 0]
    torch.testing.assert_close(model[1].head(last), model(IMAGES))


def test_blocks_run_with_the_other_arguments_of_their_call() -> None:
    from timm.models.xcit import Xcit

    network = Xcit(img_size=16, patch_size=8, in_chans=1, num_classes=10, embed_dim=16, depth=2, num_heads=2)
    model = frozen(nn.Sequential(nn.Upsample(size=(16, 16)), network))
    first, second = block_inputs(model, default_blocks(model)[:2], IMAGES)
    torch.testing.assert_close(first.at(first.tokens), second.tokens)
    assert first.rest == (2, 2)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cut, self.mix, self.never = Patchify(4), nn.Linear(16, 16), nn.Linear(16, 16)
        self.narrow, self.pair = nn.Linear(16, 4), nn.Bilinear(16, 16, 16)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.mix(self.mix(self.cut(images)))
        return self.narrow(self.pair(tokens, tokens)).mean(1)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (None, "define blocks(model) in method.py, returning a list of (name"),
        ("mix", "block 'mix' is called 2 times when the model runs; each block must be called once"),
        ("never", "block 'never' is never called"),
        ("narrow", "block 'narrow' turns tokens of shape (4, 16) into (4, 4); a block keeps the shape"),
        ("cut", "block 'cut' gets (3, 1, 8, 8) for 3 images, not tokens (images, tokens, width)"),
        ("pair", "block 'pair' takes another tensor beside its tokens"),
    ],
)
def test_a_bad_block_is_named_in_one_line(name, message) -> None:
    model = frozen(Twice())
    with pytest.raises(BenchmarkError, match=re.escape(message)) as raised:
        block_inputs(model, [(name, getattr(model, name))] if name else default_blocks(model), IMAGES)
    assert "\n" not in str(raised.value)
    assert not any(module._forward_pre_hooks for module in model.modules())
