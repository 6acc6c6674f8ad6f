"""Attention over a grid: its formula pair by pair, places on a torus, and that without content it is a convolution."""

from __future__ import annotations

import math

import torch
from torch import nn

from benchmark.layers.attention_grid import GridAttention
from benchmark.layers.attention_weights import attention_weights


def layer_of(seed: int = 0, *, side: int = 3, content: float = 0.5) -> GridAttention:
    torch.manual_seed(seed)
    layer = GridAttention(8, 2, inner=3, side=side, content=content).double().eval().requires_grad_(False)
    layer.table.copy_(torch.randn(layer.table.shape))
    for part in (layer.query, layer.key, layer.value, layer.output):
        part.bias.copy_(0.1 * torch.randn(part.bias.shape))
    return layer


def test_it_is_its_formula_pair_by_pair() -> None:
    layer = layer_of()
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    query, key, value = (part(x).unflatten(-1, (2, -1)) for part in (layer.query, layer.key, layer.value))
    mixed = torch.zeros(2, 9, 2, 4, dtype=torch.float64)
    for head in range(2):
        for i in range(9):
            scores = torch.zeros(2, 9, dtype=torch.float64)
            for j in range(9):
                down, right = (j // 3 - i // 3) % 3, (j % 3 - i % 3) % 3
                products = (query[:, i, head] * key[:, j, head]).sum(-1)
                scores[:, j] = layer.content[head] * products + layer.table[head, 3 * down + right]
            mixed[:, i, head] = torch.einsum("nj,njc->nc", scores.softmax(-1), value[:, :, head])
    assert torch.allclose(layer(x), layer.output(mixed.flatten(2)))


def test_its_matrices_by_head_are_those_that_act() -> None:
    layer, x = layer_of(), torch.randn(1, 9, 8, dtype=torch.float64)
    for part in (layer.query, layer.key, layer.value, layer.output):
        part.bias.zero_()
    (found,) = attention_weights(nn.Sequential(layer))
    total = torch.zeros_like(x)
    for head in range(2):
        scores = layer.content[head] * (x @ found.query[head]) @ (x @ found.key[head]).mT
        weights = (scores + layer.table[head, layer.places]).softmax(-1)
        total = total + weights @ x @ found.value[head] @ found.output[head]
    assert torch.allclose(total, layer(x))


def test_without_content_it_moves_with_the_image_and_no_length_grows() -> None:
    layer = layer_of(content=1e-300)
    x = torch.randn(2, 9, 8, dtype=torch.float64)

    def rolled(y: torch.Tensor) -> torch.Tensor:
        return y.unflatten(1, (3, 3)).roll((1, 2), (1, 2)).flatten(1, 2)

    assert torch.allclose(layer(rolled(x)), rolled(layer(x)))
    move = torch.randn(200, 9, 8, dtype=torch.float64)
    change = layer(x[:1] + move) - layer(x[:1])
    assert (change.flatten(1).norm(dim=1) <= move.flatten(1).norm(dim=1) * (1 + 1e-9)).all()


def test_heads_look_at_their_own_places_first() -> None:
    layer = GridAttention(26, 13, inner=1, side=5, content=1e-9)
    weights = layer.mixing(torch.randn(1, 25, 26)).weights[0]
    assert weights[:, 12].argmax(1).tolist() == [12, 13, 11, 17, 7, 18, 6, 16, 8, 14, 10, 22, 2]
    assert (weights[:, 12].amax(1) > 0.9).all()


def test_evaluation_rounds_once() -> None:
    layer = layer_of().float()
    x = 30 * torch.randn(4, 9, 8)
    exact = layer.double()(x.double())
    assert torch.equal(layer.float()(x), exact.float())


def test_training_computes_the_same_and_keeps_what_objectives_bound() -> None:
    layer, x = layer_of(), torch.randn(2, 9, 8, dtype=torch.float64)
    assert layer.kept is None
    evaluated = layer(x)
    layer.train()
    assert torch.allclose(layer(x), evaluated)
    assert torch.allclose(layer.projected(layer.kept.mixed), evaluated)
    assert torch.allclose(layer.kept.weights.sum(-1), torch.ones(2, 2, 9, dtype=torch.float64))
    assert math.isclose(float(layer.content[0]), 0.5, rel_tol=1e-6)
