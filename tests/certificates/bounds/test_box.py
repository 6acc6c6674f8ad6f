"""Balls and boxes: every claim one-sided against dense references and moves inside a region, and close to them."""

from __future__ import annotations

import pytest
import torch
from searched import few
from tiny_layers import built, draw
from torch import nn

from benchmark.certificates.bounds import linear  # noqa: F401  registers torch's layers
from benchmark.certificates.bounds.box import Convolution, Copies, Linear, Matrix, Region, Stage, largest_product
from benchmark.certificates.bounds.layer_bound import exact_layer_bound
from benchmark.layers.normalise import Normalise
from benchmark.layers.tokens import MeanPool, MergeTokens, Patchify


def random_region(n: int, units: int, seed: int, still: float = 0.3) -> Region:
    """Uneven boxes around 0, of which a share `still` of the units does not move, and balls from inside them to around them."""
    low, high = -draw(n, units, seed=seed).abs(), draw(n, units, seed=seed + 1).abs()
    moves = draw(n, units, seed=seed + 2).abs() > still
    low, high = torch.where(moves, low, 0.0), torch.where(moves, high, 0.0)
    low[:, ::3], high[:, 1::4] = 0.0, 0.0
    return Region(torch.maximum(-low, high).norm(dim=1) * torch.linspace(0.02, 1.2, n).double(), low, high)


def moves_in(region: Region, count: int, seed: int) -> torch.Tensor:
    """Moves inside a region, many on its boundary: (count, n, units)."""
    moves = draw(count, *region.low.shape, seed=seed) * torch.logspace(-2, 2, count).double()[:, None, None]
    for _ in range(2):
        moves = moves.clamp(region.low, region.high)
        moves = moves * (region.rho[:, None] / moves.norm(dim=2, keepdim=True).clamp(min=1e-300)).clamp(max=1)
    return moves


def farthest(v: torch.Tensor, region: Region) -> torch.Tensor:
    """The best of the moves clip(s v, low, high) that lie in the ball: (n, rivals), reached, so never above the supremum."""
    low, high, near = region.low[:, None], region.high[:, None], torch.zeros_like(v[..., :1])
    far = near + 1e9
    for _ in range(120):
        middle = (near * far).sqrt() if bool((near > 0).all()) else (near + far) / 2
        inside = (middle * v).clamp(low, high).norm(dim=2, keepdim=True) <= region.rho[:, None, None]
        near, far = torch.where(inside, middle, near), torch.where(inside, far, middle)
    return (v * (near * v).clamp(low, high)).sum(2)


@pytest.mark.parametrize("seed", few([0], [1, 2, 3]))
@pytest.mark.parametrize("units", [1, 2, 7, 60])
def test_the_largest_product_is_reached_and_never_passed(seed, units) -> None:
    region, v = random_region(12, units, seed), draw(12, 3, units, seed=seed + 9)
    v[:, 1] *= 10 ** (6 * draw(12, units, seed=seed).sign())  # a steep direction and flat ones
    bound, reached = largest_product(v, region), farthest(v, region)
    assert (torch.einsum("nru,snu->snr", v, moves_in(region, 300, seed)).amax(0) <= bound).all()
    assert (reached <= bound * (1 + 1e-9)).all()
    assert torch.allclose(reached, bound, rtol=1e-6, atol=1e-12)


def test_ball_and_box_alone_are_the_extremes_of_the_largest_product() -> None:
    v, wide = draw(3, 2, 9), torch.full((3, 9), 100.0).double()
    ball = Region(torch.tensor([1e-9, 1.0, 5.0]).double(), -wide, wide)
    assert torch.allclose(largest_product(v, ball), v.norm(dim=2) * ball.rho[:, None], rtol=1e-9)
    box = Region(torch.full((3,), 1e9).double(), -0.5 * wide, wide)
    assert torch.allclose(largest_product(v, box), (v.clamp(min=0) * 100 + (-v).clamp(min=0) * 50).sum(2), rtol=1e-9)
    assert (largest_product(v, Region(ball.rho, 0 * wide, 0 * wide)) == 0).all()
    assert (largest_product(0 * v, ball) == 0).all()
    assert (largest_product(v, Region(1e-20 * ball.rho, -1e-25 * wide, 1e-24 * wide)) >= 0).all()


LAYERS = {
    "conv": (nn.Conv2d(2, 3, 3, padding=1), (2, 5, 4)),
    "conv with stride": (nn.Conv2d(2, 4, 4, stride=2, padding=1), (2, 6, 6)),
    "conv in groups": (nn.Conv2d(4, 4, 3, padding=1, groups=2), (4, 4, 4)),
    "circular conv": (nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (2, 4, 3)),
    "dense": (nn.Linear(9, 6), (9,)),
    "normalisation": (Normalise(0.5, 0.25), (1, 3, 3)),
    "flattening": (nn.Flatten(), (2, 3, 2)),
    "patches": (Patchify(2), (1, 4, 4)),
    "merged tokens": (MergeTokens(2), (4, 3)),
    "mean": (MeanPool(), (5, 3)),
}


def views_of(name: str, x: torch.Tensor) -> tuple[nn.Module, torch.Tensor, list[Linear]]:
    """The layer, its matrix by basis vectors, and all views of it that the bounds could take."""
    layer = built(LAYERS[name][0])
    shape, units, bound = x.shape[1:], layer(x)[0].numel(), exact_layer_bound(layer, x)
    basis = torch.eye(shape.numel()).double().unflatten(1, shape)
    weight = (layer(basis) - layer(torch.zeros_like(basis))).flatten(1).mT
    views = [Linear(bound, shape, units), Matrix(bound, shape, units, torch.device("cpu"))]
    if isinstance(layer, nn.Conv2d):
        views.append(Convolution(layer, bound, shape, units))
    if name in ("normalisation", "flattening", "patches", "merged tokens"):
        views.append(Copies(bound, shape, units))
    return layer, weight, views


@pytest.mark.parametrize("name", LAYERS)
def test_every_view_of_a_layer_bounds_its_matrix(name) -> None:
    x = draw(6, *LAYERS[name][1])
    _, weight, views = views_of(name, x)
    region = random_region(6, x[0].numel(), 3)
    moving, rows = region.moving, draw(6, len(weight)) > -0.3
    norms = torch.stack([(weight * mask).norm(dim=1) for mask in moving])
    high = region.high @ weight.clamp(min=0).mT + region.low @ weight.clamp(max=0).mT
    low = region.low @ weight.clamp(min=0).mT + region.high @ weight.clamp(max=0).mT
    parts = [torch.linalg.matrix_norm(weight[row][:, mask], ord=2) for row, mask in zip(rows, moving, strict=True)]
    for view in views:
        assert (view.row_norms(moving) >= norms * (1 - 1e-14)).all()
        lowest, highest = view.intervals(region)
        assert ((lowest <= low + 1e-14) & (highest >= high - 1e-14)).all()
        assert (view.restricted_norm(rows, moving) >= torch.stack(parts)).all()
        if type(view) is not Linear:
            for bound, exact in ((view.row_norms(moving), norms), (lowest, low), (highest, high)):
                assert torch.allclose(bound, exact, rtol=1e-9, atol=1e-9)
        if type(view) is Matrix:
            assert torch.allclose(view.weight, weight, atol=1e-12)
            assert torch.allclose(view.restricted_norm(rows, moving), torch.stack(parts), rtol=1e-7)
            assert len(view.part_norms) == len(rows)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("clip", ["none", "relu", "clipped"])
@pytest.mark.parametrize("scale", [0.05, 1.0])
def test_no_move_leaves_the_region_behind_a_stage(name, clip, scale) -> None:
    x = draw(6, *LAYERS[name][1], seed=1)
    layer, _, views = views_of(name, x)
    wide = random_region(6, x[0].numel(), 5)
    region = Region(scale * wide.rho, scale * wide.low, scale * wide.high)
    moves = moves_in(region, 400, 7).unflatten(2, x.shape[1:])
    y = layer(x).flatten(1)
    theta = {"none": None, "relu": torch.tensor(torch.inf).double(), "clipped": draw(y.shape[1], seed=4).clamp(min=0)}[clip]
    moved = layer((x + moves).flatten(0, 1)).unflatten(0, moves.shape[:2]).flatten(2)
    if theta is not None:
        moved = moved.clamp(min=0).minimum(theta)
    change = moved - (y if theta is None else y.clamp(min=0).minimum(theta))
    rounding = torch.full((6,), 1e-9).double()
    for view in views:
        stage = Stage(view, y, torch.zeros_like, theta)
        for restricted in (False, True):
            after = stage.through(region, rounding, restricted=restricted)
            assert ((change >= after.low - 1e-13) & (change <= after.high + 1e-13)).all()
            assert (change.norm(dim=2) <= after.rho * (1 + 1e-9)).all()
            assert ((after.low <= 0) & (after.high >= 0)).all()
            assert (change[:, ~after.moving] == 0).all()  # a dead unit does not move at all


def test_dead_units_drop_out_of_norms_on_both_sides() -> None:
    """Of two units one is dead at its bottom and one alive: the norm is the live row's; then the dead column is left out."""
    first = nn.Linear(2, 3).double().requires_grad_(False)
    first.weight.copy_(torch.tensor([[3.0, 0.0], [0.0, 100.0], [0.0, 50.0]]))
    first.bias.copy_(torch.tensor([5.0, -200.0, 200.0]))  # alive, dead below 0, above the threshold
    x = torch.zeros(1, 2).double()
    theta, ones = torch.full((3,), 10.0).double(), torch.ones(1, 2).double()
    region = Region(torch.ones(1).double(), -ones, ones)
    view = Matrix(exact_layer_bound(first, x), torch.Size([2]), 3, torch.device("cpu"))
    after = Stage(view, first(x), torch.zeros_like, theta).through(region, 0 * x[:, 0], restricted=True)
    assert after.moving.tolist() == [[True, False, False]]
    assert float(after.rho) == pytest.approx(3, rel=1e-9)
    second = nn.Linear(3, 1).double().requires_grad_(False)
    second.weight.copy_(torch.tensor([[2.0, 1000.0, 1000.0]]))
    hidden = first(x).clamp(min=0).minimum(theta)
    view = Matrix(exact_layer_bound(second, hidden), torch.Size([3]), 1, torch.device("cpu"))
    last = Stage(view, second(hidden), torch.zeros_like).through(after, 0 * x[:, 0], restricted=True)
    assert float(last.rho) == pytest.approx(6, rel=1e-9)


def test_a_unit_within_rounding_of_its_kink_counts_as_moving() -> None:
    """The float64 sum of pre-activation and interval's end may round onto the kink; the unit's move is then tiny, not 0."""
    y = torch.tensor([[1.0, 1.0]]).double()
    theta = torch.tensor([1.0, 1 + 2.0**-51]).double()  # at the threshold, and two units below it
    view, small = Copies(exact_layer_bound(nn.Identity(), y), torch.Size([2]), 2), torch.full((1, 2), 2.0**-56).double()
    region = Region(small[:, 0], -small, small)
    after = Stage(view, y, torch.zeros_like, theta).through(region, 0 * small[:, 0], restricted=False)
    assert after.moving.all()
    assert (after.low <= -(2.0**-56)).all()
