"""The network of 1-Lipschitz layers around attention over a grid: its sizes, and that attention alone can move farther."""

from __future__ import annotations

import pytest
import torch

from benchmark.certificates.bounds.checked_copy import checked_copy
from benchmark.certificates.bounds.network_bound import bound_network
from benchmark.layers.attention_grid import GridAttention
from benchmark.specs.data import DataSpec
from benchmark.specs.methods import method, module

build = method("Havens2024LoFAST").build
local_margin = module("Havens2024LoFAST", "local_margin")
SMALL = {
    "network": "grid", "patch_size": 2, "width": 16, "stages": 2, "depth": 1, "attention": 2, "heads": 4, "inner": 4,
    "content": 0.3, "outputs": 24,
}  # fmt: skip


def data(channels: int = 3, height: int = 8, side: int = 8) -> DataSpec:
    return DataSpec(source="digits", shape=(channels, height, side), classes=10, validation=1, test=1)


def network() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return build(data(), **SMALL).eval().requires_grad_(False)


def test_it_has_tokens_of_each_stage_and_attention_at_the_last() -> None:
    model, sizes, x = network(), [], torch.rand(2, 3, 8, 8)
    for layer in model:
        x = layer(x)
        sizes.append(tuple(x.shape[1:]))
    assert [size for index, size in enumerate(sizes) if index == 0 or size != sizes[index - 1]] == [
        (3, 8, 8), (16, 12), (16, 16), (4, 64), (4, 32), (128,), (24,), (10,),
    ]  # fmt: skip
    assert [tuple(layer.table.shape) for layer in model if isinstance(layer, GridAttention)] == [(4, 4), (4, 4)]


def test_only_attention_may_move_farther_than_its_input() -> None:
    images = torch.rand(3, 3, 8, 8)
    bounded = bound_network(checked_copy(network()), images, torch.zeros(3, dtype=torch.int64))
    delta = torch.full((3,), 0.1, dtype=torch.float64)
    for layer, bound in zip(bounded.layers, bounded.layer_bounds, strict=True):
        most = 0.2 if isinstance(layer, GridAttention) else 0.1 * (1 + 1e-6)
        assert (bound.bound(delta) <= most).all(), type(layer).__name__


def test_its_objective_knows_it() -> None:
    local_margin.objective(None, radius=0.1, margin=0.2, temperature=8).attach(network(), torch.rand(1, 3, 8, 8))


@pytest.mark.parametrize(
    ("shape", "change"), [((3, 8, 6), {}), ((3, 8, 8), {"stages": 4}), ((3, 8, 8), {"heads": 5}), ((3, 6, 6), {})]
)
def test_what_does_not_fit_is_refused(shape, change) -> None:
    with pytest.raises(ValueError, match=r"tile|heads"):
        build(data(*shape), **{**SMALL, **change})


def test_another_network_is_refused() -> None:
    with pytest.raises(ValueError, match="lofast, grid, content"):
        build(data(), network="swin")
