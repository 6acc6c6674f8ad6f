"""Layers that keep lengths: where a shift takes each channel, and the absolute value as the sorting of pairs."""

from __future__ import annotations

import torch

from benchmark.layers.isometries import Absolute, ShiftTokens


def test_each_group_of_channels_moves_by_one_place_its_own_way() -> None:
    x = torch.zeros(1, 9, 10)
    x[0, 4] = 1.0  # the middle of 3x3
    places = ShiftTokens(3, 2)(x)[0].argmax(0)
    assert places.tolist() == [7, 7, 1, 1, 5, 5, 3, 3, 4, 4]


def test_what_leaves_the_grid_comes_in_at_the_other_edge() -> None:
    x = torch.zeros(1, 9, 4)
    x[0, 0] = 1.0
    assert ShiftTokens(3, 1)(x)[0].argmax(0).tolist() == [3, 6, 1, 2]


def test_the_absolute_value_of_half_is_the_sorting_of_pairs_but_for_a_rotation() -> None:
    pairs = torch.randn(100, 2, dtype=torch.float64)
    turn = torch.tensor([[1.0, -1.0], [1.0, 1.0]], dtype=torch.float64) / 2**0.5  # difference and sum
    folded = Absolute(1)(pairs @ turn.mT) @ turn
    assert torch.allclose(folded, pairs.sort(dim=1, descending=True).values)
    assert torch.allclose(folded.norm(dim=1), pairs.norm(dim=1))
