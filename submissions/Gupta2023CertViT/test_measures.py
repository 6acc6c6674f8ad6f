"""What a network costs, its constant and the paper's formula, by hand; attention that does nothing, something, or all."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmark.certificates import lipschitz
from benchmark.layers.attention import SelfAttention
from benchmark.layers.attention_l2 import L2Attention
from benchmark.layers.attention_window import DotProductWindowAttention, L2WindowAttention
from benchmark.layers.residual import Residual
from benchmark.layers.tokens import Patchify, TakeToken
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.methods import module

measures = module("Gupta2023CertViT", "measures")
cost = measures.cost
IMAGES, LABELS = torch.randn(40, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(40)


def test_a_linear_model_costs_two_operations_a_weight() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False))
    found = cost(model, torch.rand(4, 1, 8, 8), torch.zeros(4), seed=0, epochs=5, train_images=7)
    assert found == {"parameters": 640.0, "forward": 1280.0, "training": 3 * 1280.0 * 35}


def network(attention: nn.Module) -> nn.Module:
    layers = Patchify(1), nn.Linear(1, 4), nn.Tanh(), Residual(attention), TakeToken(5), nn.Linear(4, 9)
    return nn.Sequential(*layers).eval()


ATTENTION = [
    lambda: SelfAttention(4, 2),
    lambda: L2Attention(4, 2),
    lambda: DotProductWindowAttention(4, 2, side=4, window=2, shift=1),
    lambda: L2WindowAttention(4, 2, side=4, window=2),
]


@pytest.mark.parametrize("make", ATTENTION)
def test_attention_that_adds_nothing_is_idle(make) -> None:
    torch.manual_seed(0)
    layer = make()
    output = getattr(layer, "content", layer).output
    nn.init.zeros_(output.weight)
    assert measures.attention_used(network(layer), IMAGES, LABELS, seed=0) == {"without": 0.0, "uniform": 0.0}


@pytest.mark.parametrize("make", ATTENTION)
def test_attention_that_decides_is_seen_and_the_network_stays_as_it_is(make) -> None:
    torch.manual_seed(0)
    model = network(make()).requires_grad_(False)
    for parameter in model.parameters():
        parameter.copy_(2 * torch.randn(parameter.shape) if parameter.ndim > 1 else torch.zeros(parameter.shape))
    before = model(IMAGES)
    found = measures.attention_used(model, IMAGES, LABELS, seed=0)
    assert min(found.values()) > 0.05
    assert torch.equal(model(IMAGES), before)


def test_the_mean_is_of_the_tokens_on_the_same_side_of_a_border() -> None:
    """With queries of 0 dot products weigh all tokens alike, so that nothing changes; without a position bias."""
    torch.manual_seed(0)
    layer = DotProductWindowAttention(4, 2, side=4, window=2, shift=1).requires_grad_(False)
    for parameter in (layer.bias_table, layer.content.query.weight, layer.content.query.bias):
        parameter.zero_()
    x = torch.randn(2, 16, 4)
    assert torch.allclose(measures._with(layer, measures._mean)(x), layer(x), atol=1e-6)
    assert not torch.allclose(measures._with(layer, measures._zeros)(x), layer(x), atol=1e-2)


def test_the_constant_and_the_formula_of_a_linear_model_by_hand() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False)).requires_grad_(False)
    images = torch.rand(8, 1, 8, 8)
    labels = model(images).argmax(1)
    norm = float(torch.linalg.matrix_norm(model[1].weight.double(), ord=2))
    constants = measures.lipschitz_constant(model, images, labels, seed=0)
    assert norm <= constants["network"] <= norm * (1 + 1e-8)
    assert constants["below the head"] == pytest.approx(1.0)
    logits = model(images).double()
    top = logits.topk(2).values
    expected = (top[:, 0] - top[:, 1]) / (2**0.5 * norm)
    shown = measures.unsound_formula(model, images, labels, seed=0, formula="certvit", radii=[0.01, 0.1])
    assert torch.allclose(shown["value"], expected, rtol=1e-6)
    assert shown["reached"] == [float((expected >= r).double().mean()) for r in (0.01, 0.1)]
    sound = lipschitz.certify(model, images, labels)
    assert (shown["value"] <= sound * (1 + 1e-3)).all(), "one linear layer's formula happens to be sound, and looser"
    with pytest.raises(BenchmarkError, match=r"plain nn\.Sequential"):
        measures.lipschitz_constant(nn.Linear(2, 2), images, labels, seed=0)
