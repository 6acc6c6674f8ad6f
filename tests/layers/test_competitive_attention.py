"""Attention by competition: exact projections, lengths kept, ascent on what it moves, windows by hand, patterns, budgets."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from searched import few
from torch import nn

from benchmark.layers.competitive_attention import (
    Competition,
    CompetitiveAttention,
    ConeAttention,
    MaxMinTokens,
    fit_budgets,
    watching,
)
from benchmark.layers.lipschitz import OrthogonalLinear

BUDGET = 0.6


def competitive(window: int = 5) -> CompetitiveAttention:
    return CompetitiveAttention(2 * (2 * window + 1), 2, side=3, window=window, budget=BUDGET)


def cone(window: int = 5) -> ConeAttention:
    return ConeAttention(2 * (2 * window + 1), 2, side=3, window=window)


LAYERS = {
    "simplex": competitive(),
    "simplex of all": competitive(9),
    "cone": cone(),
    "cone of all": cone(9),
    "max and min": MaxMinTokens(3, 5),
}


def tokens(layer: nn.Module, seed: int, count: int = 3) -> torch.Tensor:
    """Some that are far apart, some nearly alike and some within a rounding error of ties."""
    width = layer.width if isinstance(layer, Competition) else 11
    x = torch.randn(count, 9, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return x * torch.tensor([1.0, 0.05, 3.0], dtype=torch.float64)[:count, None, None]


def by_faces(s: torch.Tensor, own: bool) -> torch.Tensor:
    """The projection of s (K,) onto {r >= 0, sum r = BUDGET}, or, with an own entry first that is free, sum r = 0: the nearest
    of the projections onto all faces that lie in the set.
    """
    total, count, best = 0.0 if own else BUDGET, len(s), None
    for face in itertools.product([False, True], repeat=count - own):
        free = torch.tensor([True] * own + list(face))
        if not free.any():
            continue
        r = torch.where(free, s - (s[free].sum() - total) / free.sum(), 0.0)
        if (r[int(own) :] >= -1e-12).all() and (best is None or (r - s).norm() < (best - s).norm()):
            best = r
    assert best is not None
    return best


@pytest.mark.parametrize("window", [3, 5])
@pytest.mark.parametrize("own", [False, True])
def test_the_excess_is_the_projection_onto_the_nearest_face(own, window) -> None:
    layer = (ConeAttention if own else CompetitiveAttention)(2 * window, 1, side=2 if window == 3 else 3, window=window)
    if isinstance(layer, CompetitiveAttention):
        layer.budget = BUDGET
    for seed in range(20):
        s = torch.randn(window, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * (0.1, 1.0)[seed % 2]
        ties = s.round(decimals=0)
        for scores in (s, ties):
            torch.testing.assert_close(layer.excess(scores[None])[0], by_faces(scores, own), atol=1e-12, rtol=0)


@pytest.mark.sweep
@pytest.mark.parametrize("name", LAYERS)
def test_the_jacobian_is_orthogonal(name) -> None:
    layer = LAYERS[name].double()
    x = tokens(layer, 0)
    for image in x:
        jacobian = torch.autograd.functional.jacobian(lambda z: layer(z[None])[0], image).reshape(image.numel(), -1)
        torch.testing.assert_close(torch.linalg.svdvals(jacobian), torch.ones(image.numel()).double())
    moved = [part.clone() for part in layer(x)]
    assert all((a - b).norm() > 0.01 for a, b in zip(moved, x, strict=True)), "and it does something"


@pytest.mark.sweep
@pytest.mark.parametrize("name", LAYERS)
def test_a_window_by_hand(name) -> None:
    """F(X) = X - 2 W^T Pi(W X), written out token by token with the neighbours named."""
    layer, x = LAYERS[name].double(), tokens(LAYERS[name], 1)
    place = lambda i, down, right: (i // 3 + down) % 3 * 3 + (i % 3 + right) % 3  # noqa: E731
    expected = x.clone()
    if isinstance(layer, MaxMinTokens):
        steps = [(1, 0), (1, 0), (-1, 0), (0, 1), (0, -1)]  # of pairs 0 to 4
        for i, (c, step) in itertools.product(range(9), enumerate(steps)):
            j = place(i, *step)
            pair = torch.stack([x[:, i, c], x[:, j, 5 + c]])
            expected[:, i, c], expected[:, j, 5 + c] = pair.amax(0), pair.amin(0)
        torch.testing.assert_close(layer(x), expected)
        return
    window, share = layer.window, layer.width // 2
    near = {(0, 0), (0, 1), (0, 2), (1, 0), (2, 0)}  # itself and its four neighbours
    assert set(layer.places) == near if window == 5 else len(set(layer.places)) == 9
    assert layer.places[0] == (0, 0)
    for i, head in itertools.product(range(9), range(2)):
        own = [head * share + a for a in range(window)]
        keys = [(place(i, *step), head * share + window + a) for a, step in enumerate(layer.places)]
        scores = torch.stack([(x[:, i, c] + x[:, j, k]) / 2**0.5 for c, (j, k) in zip(own, keys, strict=True)], 1)
        projected = torch.stack([by_faces(row, isinstance(layer, ConeAttention)) for row in scores])
        for a, (j, k) in enumerate(keys):
            expected[:, i, own[a]] -= 2**0.5 * projected[:, a]
            expected[:, j, k] -= 2**0.5 * projected[:, a]
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.sweep
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("seed", few([0], range(1, 60)))
def test_no_move_across_walls_grows(name, seed) -> None:
    """Ascent on |F(x + D) - F(x)| / |D| over x, D and the maps around, from moves that cross many walls to small ones."""
    torch.manual_seed(seed)
    layer = copy.deepcopy(LAYERS[name]).double()
    width = tokens(layer, 0).shape[2]
    net = nn.Sequential(OrthogonalLinear(width, width), layer, OrthogonalLinear(width, width), layer).double().eval()
    x, move = tokens(layer, seed).requires_grad_(), tokens(layer, seed + 1).requires_grad_()
    optimizer = torch.optim.Adam([x, move, *net.parameters()], lr=0.03, maximize=True)
    for _ in range(25):
        optimizer.zero_grad()
        ratio = (net(x + move) - net(x)).flatten(1).norm(dim=1) / move.flatten(1).norm(dim=1)
        assert (ratio <= 1 + 1e-9).all()
        ratio.sum().backward()
        optimizer.step()


@pytest.mark.parametrize("name", LAYERS)
def test_a_pattern_is_seen_and_replaced_within_the_block_alone(name) -> None:
    layer, x = LAYERS[name].double(), tokens(LAYERS[name], 2)
    with torch.no_grad():
        before, seen = layer(x), []
        with watching(lambda pattern, uniform: seen.append((pattern, uniform)) or pattern):
            torch.testing.assert_close(layer(x), before)
        ((pattern, uniform),) = seen
        if isinstance(layer, CompetitiveAttention):
            torch.testing.assert_close(pattern.sum(-1), torch.ones(pattern.shape[:-1]).double())
            assert uniform() == 1 / layer.window
        else:
            assert set(pattern.unique().tolist()) == {0.0, 1.0}
        with watching(lambda pattern, uniform: torch.zeros_like(pattern)):
            torch.testing.assert_close(layer(x), x)
        with watching(lambda pattern, uniform: torch.full_like(pattern, uniform())):
            assert not torch.allclose(layer(x), before, atol=1e-3)
        assert torch.equal(layer(x), before)


def test_budgets_are_set_once_by_the_spread_of_scores() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(OrthogonalLinear(20, 20), CompetitiveAttention(20, 2, side=3, window=5), nn.Flatten()).eval()
    images = torch.randn(50, 9, 20)
    fit_budgets(model, images)
    budgets = model[1].budgets.detach()
    scores = model[1].scores(model[0](images)).double()
    spread = (scores - scores.mean(-1, keepdim=True)).square().mean((0, 1, 2, 4)).sqrt()
    torch.testing.assert_close(budgets, 0.4 * 5 * spread, rtol=1e-5, atol=0)
    assert 0.3 < float((model[1].excess(scores.float()) > 0).double().mean()) < 0.9
    fit_budgets(model, 2 * images)
    assert torch.equal(model[1].budgets, budgets), "what was set or learned stays"
