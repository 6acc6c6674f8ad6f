"""Attention in windows compared with its formula, token by token; with timm's block by Gupta2023CertViT's tests."""

from __future__ import annotations

import itertools

import pytest
import torch
from tiny_layers import built, draw

from benchmark.layers.attention_l2 import L2Attention
from benchmark.layers.attention_window import MASKED, DotProductWindowAttention, L2WindowAttention, WindowAttention


def mixed_pair_by_pair(layer: WindowAttention, cut: torch.Tensor) -> torch.Tensor:
    """softmax(scores + B + mask) times the values of windows (windows, 4, width), by the layer's own formula."""
    content = layer.content
    query, *key, value, output = content.head_weights()
    scale, x = query.shape[2] ** 0.5, cut[:, None]
    if isinstance(content, L2Attention):
        scores = -(x @ query)[..., None, :].sub((x @ query)[..., None, :, :]).square().sum(-1) / scale
        values = x @ (query @ query.mT / scale) @ value
    else:
        parts = ((content.query, query), (content.key, key[0]), (content.value, value))
        q, k, values = (x @ weight + part.bias.unflatten(0, (content.heads, 1, -1)) for part, weight in parts)
        scores = q @ k.mT / scale
    for window, i, j in itertools.product(range(len(cut)), range(4), range(4)):
        place = 3 * (i // 2 - j // 2 + 1) + i % 2 - j % 2 + 1
        scores[window, :, i, j] += layer.bias_table[place] + layer.mask[window % len(layer.mask), i, j]
    mixed = (scores.softmax(-1) @ values @ output).sum(1)
    return mixed if content.output.bias is None else mixed + content.output.bias


@pytest.mark.parametrize("kind", [DotProductWindowAttention, L2WindowAttention])
@pytest.mark.parametrize("shift", [0, 1])
def test_it_is_its_formula_pair_by_pair(kind, shift) -> None:
    layer, x = built(kind(6, 2, side=4, window=2, shift=shift)), draw(2, 16, 6)
    assert torch.allclose(layer(x), layer.together(mixed_pair_by_pair(layer, layer.windows(x))), atol=1e-12)
    assert (layer.mask.min() == MASKED) == bool(shift)


def reached(layer: L2WindowAttention, token: int) -> set[int]:
    """Return the tokens on which one token's output depends by more than 1e-30."""
    jacobian = torch.autograd.functional.jacobian(lambda y: layer(y)[0, token], draw(1, 16, 8))[:, 0]
    return {*(jacobian.abs().amax((0, 2)) > 1e-30).nonzero()[:, 0].tolist()}


def test_the_mask_separates_tokens_of_opposite_edges_unless_a_bias_exceeds_it() -> None:
    layer = built(L2WindowAttention(8, 2, side=4, window=2, shift=1))
    assert [reached(layer, token) for token in (5, 0, 1)] == [{5, 6, 9, 10}, {0}, {1, 2}]
    layer.bias_table.fill_(200.0)
    layer.bias_table[4] = 0.0  # the diagonal
    assert reached(layer, 0) == {0, 3, 12, 15}


def test_it_learns_its_bias_and_keeps_no_tables_in_its_state() -> None:
    layer = L2WindowAttention(8, 2, side=4, window=2, shift=1)
    layer(torch.randn(2, 16, 8)).square().sum().backward()
    assert layer.bias_table.grad.abs().sum() > 0
    assert {name.split(".")[0] for name in layer.state_dict()} == {"bias_table", "content"}
