"""Windowed L2 attention against a loop over windows, timm's Swin, and its borders."""

from __future__ import annotations

import warnings

import pytest
import torch
from tiny_layers import built, draw

from benchmark.layers.attention_l2 import L2Attention
from benchmark.layers.attention_window import MASKED, L2WindowAttention

SHAPES = [(2, 2, 0), (4, 2, 0), (4, 2, 1), (6, 3, 1), (6, 3, 2), (3, 1, 0)]  # side, window, shift


def layer_of(side: int, window: int, shift: int, heads: int = 2) -> L2WindowAttention:
    layer = built(L2WindowAttention(8, heads, side=side, window=window, shift=shift))
    assert isinstance(layer, L2WindowAttention)
    return layer


def by_loop(layer: L2WindowAttention, x: torch.Tensor) -> torch.Tensor:
    """Each token's window by its place in the rolled grid, scores pair by pair."""
    side, window, shift, out = layer.side, layer.window, layer.shift, torch.zeros_like(x)
    places = [((token // side - shift) % side, (token % side - shift) % side) for token in range(side**2)]
    query, value, output = layer.content.head_weights()
    scale = query.shape[2] ** 0.5
    for i, (row, column) in enumerate(places):
        near = [j for j, (r, c) in enumerate(places) if (r // window, c // window) == (row // window, column // window)]
        for h in range(len(query)):
            scores = []
            for j in near:
                down, right = row - places[j][0], column - places[j][1]
                bias = layer.bias_table[(2 * window - 1) * (down + window - 1) + right + window - 1, h]
                # neighbours of the rolled grid that are none of the grid: a roll has taken one of them around
                apart = any(
                    abs(i_at - j_at) >= window for i_at, j_at in zip(divmod(i, side), divmod(j, side), strict=True)
                )
                distance = ((x[:, i] - x[:, j]) @ query[h]).square().sum(-1)
                scores.append(-distance / scale + bias + (MASKED if apart else 0.0))
            weights = torch.stack(scores, dim=1).softmax(1)
            mixed = torch.einsum("nj,njd->nd", weights, x[:, near])
            out[:, i] += mixed @ query[h] @ query[h].mT / scale @ value[h] @ output[h]
    return out


@pytest.mark.parametrize(("side", "window", "shift"), SHAPES)
@pytest.mark.parametrize("heads", [1, 2])
def test_it_is_its_formula_token_by_token(side, window, shift, heads) -> None:
    layer, x = layer_of(side, window, shift, heads), draw(2, side**2, 8)
    assert torch.allclose(layer(x), by_loop(layer, x), atol=1e-12)


def test_one_window_without_bias_is_plain_l2_attention() -> None:
    layer, x = layer_of(3, 3, 0), draw(2, 9, 8)
    layer.bias_table.zero_()
    assert torch.allclose(layer(x), layer.content(x), atol=1e-14)
    layer.bias_table.normal_()
    assert not torch.allclose(layer(x), layer.content(x), atol=1e-3)


def reached(layer: L2WindowAttention, token: int) -> set[int]:
    """The tokens on which the output of one depends by more than 1e-30."""
    x = draw(1, layer.side**2, 8)
    jacobian = torch.autograd.functional.jacobian(lambda y: layer(y)[0, token], x)[:, 0]
    return {*(jacobian.abs().amax((0, 2)) > 1e-30).nonzero()[:, 0].tolist()}


def test_a_token_sees_its_window_and_nothing_across_the_masked_border() -> None:
    layer = layer_of(4, 2, 1)
    assert reached(layer, 5) == {5, 6, 9, 10}  # the middle window is whole
    assert reached(layer, 0) == {0}  # four corners share a window, each alone
    assert reached(layer, 1) == {1, 2}  # the upper edge shares one with the lower
    assert reached(layer, 4) == {4, 8}
    assert reached(layer_of(4, 2, 0), 0) == {0, 1, 4, 5}
    x, moved = draw(1, 16, 8), draw(1, 16, 8)
    moved[:, 1:3] = x[:, 1:3]
    assert torch.allclose(layer(x)[:, 1:3], layer(moved)[:, 1:3], atol=1e-14)


def test_a_mask_of_minus_hundred_is_no_wall_for_a_bias_of_two_hundred() -> None:
    layer = layer_of(4, 2, 1)
    layer.bias_table.fill_(200.0)
    layer.bias_table[4] = 0.0  # the diagonal
    assert reached(layer, 0) == {0, 3, 12, 15}


@pytest.mark.parametrize(("side", "window", "shift"), [(8, 4, 2), (6, 3, 1), (14, 7, 3)])
def test_places_and_masks_are_timms(side, window, shift) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from timm.models.swin_transformer import SwinTransformerBlock
    theirs = SwinTransformerBlock(8, (side, side), num_heads=2, window_size=window, shift_size=shift)
    ours = L2WindowAttention(8, 2, side=side, window=window, shift=shift)
    assert torch.equal(ours.mask, theirs.attn_mask)
    assert torch.equal(ours.places, theirs.attn.relative_position_index)
    assert ours.bias_table.shape == theirs.attn.relative_position_bias_table.shape


def test_it_learns_its_bias_and_keeps_no_tables_in_its_state() -> None:
    layer = L2WindowAttention(8, 2, side=4, window=2, shift=1)
    layer(torch.randn(2, 16, 8)).square().sum().backward()
    assert layer.bias_table.grad is not None
    assert layer.bias_table.grad.abs().sum() > 0
    assert {name.split(".")[0] for name in layer.state_dict()} == {"bias_table", "content"}
    assert isinstance(layer.content, L2Attention)
