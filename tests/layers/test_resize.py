"""Nearest neighbour by a whole factor, as a layer of the model."""

from __future__ import annotations

import torch

from benchmark.layers.resize import Resize


def test_each_pixel_is_copied_factor_by_factor_times() -> None:
    x = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    large = Resize(12)(x)
    assert large.shape == (2, 3, 12, 12)
    assert all(torch.equal(large[:, :, row::3, column::3], x) for row in range(3) for column in range(3))
    assert torch.equal(large[:, :, :3, :3], x[:, :, :1, :1].expand(2, 3, 3, 3))
    assert torch.equal(large, torch.nn.functional.interpolate(x, size=(12, 12), mode="nearest"))
    assert torch.equal(Resize(4)(x), x)


def test_every_move_grows_by_the_factor() -> None:
    move = torch.randn(5, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(Resize(28)(move).flatten(1).norm(dim=1), 7 * move.flatten(1).norm(dim=1), rtol=1e-14)
