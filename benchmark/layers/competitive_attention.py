"""Attention of constant exactly 1 whose content matters: tokens compete for their query, and scores alone move.

Let X be all tokens of an image, stacked. A group is one query token and one head, with K scores s = W X + b. F moves X
along the scores alone. The rows of W are orthonormal: score a of token i is (q_ia + k_ja) / sqrt 2, j the a-th place of the
window around i, and each place has query and key channels of its own. The maps in front (`OrthogonalLinear`) make queries
and keys of tokens, and their biases are b.

Theorem. Let W W^T <= I and Pi the projection onto a closed convex set, group by group. F(X) = X - 2 W^T Pi(W X + b) is
1-Lipschitz. If W W^T = I and the set is a polyhedron, F' is orthogonal almost everywhere, so lengths of small moves are kept.
Proof. Take X and Y, D = X - Y, u = W D and v = Pi(W X + b) - Pi(W Y + b). Projections are firmly nonexpansive:
<u, v> >= |v|^2. So |F(X) - F(Y)|^2 = |D|^2 - 4 <u, v> + 4 |W^T v|^2 <= |D|^2 - 4 (<u, v> - |v|^2) <= |D|^2. On a face of
a polyhedron Pi' is an orthogonal projector P, and (I - 2 W^T P W)^2 = I by W W^T = I. No derivative is needed, so nothing
breaks where the support changes.

`CompetitiveAttention`: the simplex {r >= 0, sum r = budget}, so Pi(s) = (s - c)_+ and p = Pi(s) / budget is sparsemax
(Martins & Astudillo 2016). F reflects the scores above the level c. It reflects X at the implicit step of
budget max_a s_a, the limit of log-sum-exp attention of temperature 0.
`ConeAttention`: the cone {r_a >= 0 for a > 0, sum r = 0}, polar to {s_0 >= s_a}, s_0 the score of the query's own token.
Keys above the level c are pooled with the query. It has no budget and no temperature.
`MaxMinTokens`: the larger and the smaller of a channel and a neighbour's: the same cone with K = 2 and W = I (MaxMin of
Anil et al. 2019, across tokens).

Soft attention, which is not built. Phi(X) = tau sum_groups log sum_a exp(s_a / tau) is convex, its gradient is W^T p, p the
softmax of s / tau, and its Hessian is at most I / (2 tau) for W W^T = I: the variance of numbers of norm 1 is at most 1/2. So
X - eta W^T p is 1-Lipschitz for 0 <= eta <= 4 tau. But 1/2 needs a tie of two; where K scores are alike, a step of 4 tau
multiplies their differences by 1 - 4 / K: it nearly annihilates them at 4 or 5, and does next to nothing at large K. The
implicit step above is a reflection whatever K.

Level. Put the scores in falling order, for the cone after the own one, and let f_k = (s_1 + ... + s_k - budget) / k, with
budget 0 for the cone. Then c = max_k f_k. Proof: f_(k+1) is between f_k and s_(k+1), so f rises while s_(k+1) > f_k. Once
s_(k+1) <= f_k, this holds for all later k, and f rises no more. At the first such k the first k scores are those above f_k
(the own one is always among them), and their excess over f_k sums to the budget.

Proposition (what content can do free of charge). Let F' = M + E, M orthogonal, the pattern that stays, and E what content
adds. |F'| <= 1 if and only if M^T E + E^T M + E^T E <= 0, by |F'|^2 = |M^T F'|^2 and M^T F' = I + M^T E. So content's
derivative must be negative semidefinite against the pattern. In softmax attention over values its sign is free, so that
every weight of the content costs. Let F be continuous and piecewise affine with orthogonal F', J and J' on the two sides of a
wall with unit normal n. Then J' = J (I - 2 n n^T): J' - J = w n^T by continuity, and J^T J' = I + (J^T w) n^T is orthogonal,
so it is I or I - 2 n n^T. So what moves freely by content is the compared score itself, reflected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from benchmark.layers.kinds import checked, known, positive, whole
from benchmark.layers.tokens import on_grid

GAIN = 10.0  # log budgets are learned this many times as fast as other parameters
SHARE = 0.4  # of window * the scores' spread: a budget with which about half of a window is in the support
ROOT, HALF = 2.0**0.5, 0.5**0.5
SIZES = {"width": whole(1), "heads": whole(1), "side": whole(1, 64), "window": whole(2)}
Uniform = Callable[[], torch.Tensor | float]  # the pattern that treats all places alike
Watcher = Callable[[torch.Tensor, Uniform], torch.Tensor | None]
_watchers: list[Watcher] = []  # those that see and replace patterns; the last one counts


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Within the block these layers show their patterns (n, ...) to `watcher(pattern, uniform)`, and mix by what it returns.

    With None they mix by their own. A pattern of zeros moves nothing.
    """
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.pop()  # blocks nest


def being_watched() -> bool:
    """Return whether something sees or replaces patterns now, so that layers may compute something else."""
    return bool(_watchers)


def _replacement(pattern: Callable[[], torch.Tensor], uniform: float) -> torch.Tensor | None:
    return _watchers[-1](pattern(), lambda: uniform) if _watchers else None


def rings(side: int) -> list[list[tuple[int, int]]]:
    """Return the places (down, right) of a side x side torus relative to a token, grouped by distance, nearest first."""
    by_distance: dict[int, list[tuple[int, int]]] = {}
    for down in range(side):
        for right in range(side):
            distance = min(down, side - down) ** 2 + min(right, side - right) ** 2
            by_distance.setdefault(distance, []).append((down, right))
    return [by_distance[distance] for distance in sorted(by_distance)]


class Competition(nn.Module):
    """F of this file for tokens on a side x side torus: (n, side^2, width) to the same.

    Each head has width / heads channels: `window` queries, `window` keys, and a rest that stays. A window is all places
    within some distance of the token, 5 or 9 say, or all tokens.

    Raises:
        ValueError: heads that do not divide the width, too few channels or tokens for the window, a window that is no such
            set of places, or an input of other tokens.
    """

    uniform: float  # see `watching`

    def __init__(self, width: int, heads: int, *, side: int, window: int) -> None:
        super().__init__()
        for name, value in {"width": width, "heads": heads, "side": side, "window": window}.items():
            checked(name, SIZES[name], value)
        if width % heads:
            raise ValueError(f"{heads} heads do not divide a width of {width} channels")
        if window > side**2:
            raise ValueError(f"a window of {window} tokens is more than {side}x{side} tokens")
        if width // heads < 2 * window:
            raise ValueError(f"{width // heads} channels a head are fewer than a window's {window} queries and {window} keys")
        places: list[tuple[int, int]] = []
        for ring in rings(side):
            places += ring if len(places) < window else []
        if len(places) != window:
            raise ValueError(f"a window of {window} does not tile {side}x{side} tokens: the next that does has {len(places)}")
        self.width, self.heads, self.side, self.window, self.places = width, heads, side, window, places

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        queries, keys, rest = self._parts(x)
        scores = (queries + self._looked_up(keys)) * HALF
        excess = self.excess(scores)
        if (given := _replacement(lambda: self.pattern(scores, excess), self.uniform)) is not None:
            excess = self.by_pattern(scores, given)
        moved = excess * ROOT
        return torch.cat([queries - moved, keys - self._given_back(moved), rest], dim=4).flatten(3).flatten(1, 2)

    def scores(self, x: torch.Tensor) -> torch.Tensor:
        """Return W X, (n, side, side, heads, window)."""
        queries, keys, _ = self._parts(x)
        return (queries + self._looked_up(keys)) * HALF

    def _parts(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        grid = on_grid(x, self.side)
        if x.shape[2] != self.width:
            raise ValueError(f"{x.shape[2]} channels are given where {self.width} are asked for")
        share = self.width // self.heads
        return grid.unflatten(3, (self.heads, share)).split([self.window, self.window, share - 2 * self.window], dim=4)

    def _looked_up(self, keys: torch.Tensor) -> torch.Tensor:
        """Return each token's keys from the places of its window."""
        return self._permuted(keys, [(-down, -right) for down, right in self.places])

    def _given_back(self, keys: torch.Tensor) -> torch.Tensor:
        return self._permuted(keys, self.places)

    @staticmethod
    def _permuted(keys: torch.Tensor, steps: list[tuple[int, int]]) -> torch.Tensor:
        """Roll channel a of keys (n, side, side, heads, window) by step a; one permutation takes a third of the time."""
        own = torch.arange(keys.shape[1:].numel(), device=keys.device).view(keys.shape[1:])
        parts = zip(own.unbind(3), steps, strict=True)
        order = torch.stack([part.roll(step, (0, 1)) for part, step in parts], dim=3)
        return keys.flatten(1).index_select(1, order.flatten()).view(keys.shape)

    def excess(self, scores: torch.Tensor) -> torch.Tensor:
        """Return Pi(scores), (..., heads, window) like the scores."""
        raise NotImplementedError

    def pattern(self, scores: torch.Tensor, excess: torch.Tensor) -> torch.Tensor:
        """Return which keys win, (..., heads, window)."""
        raise NotImplementedError

    def by_pattern(self, scores: torch.Tensor, pattern: torch.Tensor) -> torch.Tensor:
        """Return what replaces the excess where a pattern is given."""
        raise NotImplementedError


def level(ordered: torch.Tensor, budget: torch.Tensor | float) -> torch.Tensor:
    """c = max_k (s_1 + ... + s_k - budget) / k of ordered scores (..., window): (..., 1)."""
    counts = torch.arange(1, ordered.shape[-1] + 1, dtype=ordered.dtype, device=ordered.device)
    means = (ordered.cumsum(-1) - budget) / counts
    return means.gather(-1, means.argmax(-1, keepdim=True))  # at ties one place has the whole derivative


@known(**SIZES, budget=positive, constant=1.0)
class CompetitiveAttention(Competition):
    """X - 2 W^T Pi(W X + b), Pi the projection onto {r >= 0, sum r = budget}: sparsemax attention, 1-Lipschitz.

    A budget is learned for each head, as budget exp(GAIN log_budget), computed in float64 and rounded once.

    Raises:
        ValueError: as of `Competition`, or a budget that is not positive.
    """

    def __init__(self, width: int, heads: int, *, side: int, window: int, budget: float = 1.0) -> None:
        super().__init__(width, heads, side=side, window=window)
        self.budget, self.uniform = checked("budget", positive, budget), 1 / window
        self.log_budget = nn.Parameter(torch.zeros(heads))

    @property
    def budgets(self) -> torch.Tensor:
        """lambda: (heads,) float64."""
        return self.budget * (GAIN * self.log_budget.double()).exp()

    def excess(self, scores: torch.Tensor) -> torch.Tensor:
        budgets = self.budgets.to(scores.dtype)[:, None]
        return (scores - level(scores.sort(dim=-1, descending=True).values, budgets)).relu()

    def pattern(self, scores: torch.Tensor, excess: torch.Tensor) -> torch.Tensor:
        """Return sparsemax's weights; each row sums to 1."""
        return excess / self.budgets.to(scores.dtype)[:, None]

    def by_pattern(self, scores: torch.Tensor, pattern: torch.Tensor) -> torch.Tensor:
        return pattern * self.budgets.to(scores.dtype)[:, None]


@known(**SIZES, constant=1.0)
class ConeAttention(Competition):
    """X - 2 W^T Pi(W X + b), Pi the projection onto {r_a >= 0 for a > 0, sum r = 0}: a query's own score and those above
    the level become twice their mean less themselves; 1-Lipschitz.
    """

    uniform = 1.0

    def excess(self, scores: torch.Tensor) -> torch.Tensor:
        own, others = scores[..., :1], scores[..., 1:]
        ordered = torch.cat([own, others.sort(dim=-1, descending=True).values], dim=-1)
        above = (others - level(ordered, 0.0)).relu()
        return torch.cat([-above.sum(-1, keepdim=True), above], dim=-1)

    def pattern(self, scores: torch.Tensor, excess: torch.Tensor) -> torch.Tensor:
        """Return 1 where a score is pooled, else 0."""
        return (excess != 0).to(scores.dtype)

    def by_pattern(self, scores: torch.Tensor, pattern: torch.Tensor) -> torch.Tensor:
        pooled = pattern.sum(-1, keepdim=True)
        mean = (pattern * scores).sum(-1, keepdim=True) / torch.where(pooled > 0, pooled, 1.0)
        return pattern * (scores - mean)


@known(side=whole(2, 64), pairs=whole(1), constant=1.0)
class MaxMinTokens(nn.Module):
    """The larger of a channel and a neighbour's, and the smaller at the neighbour: (n, side^2, width) to the same.

    Channel c of the first `pairs` meets channel pairs + c of the token below; after a quarter of the pairs above, then to the
    right, then to the left, on a torus of side x side tokens. The rest stays. 1-Lipschitz, keeps lengths, rounds nothing.

    Raises:
        ValueError: fewer than 2x2 tokens or one pair, or an input of other tokens or of fewer than 2 `pairs` channels.
    """

    uniform = 0.5

    def __init__(self, side: int, pairs: int) -> None:
        super().__init__()
        self.side, self.pairs = checked("side", whole(2, 64), side), checked("pairs", whole(1), pairs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grid, pairs = on_grid(x, self.side), self.pairs
        if x.shape[2] < 2 * pairs:
            raise ValueError(f"{x.shape[2]} channels are too few for {pairs} pairs")
        own, other, rest = grid.split([pairs, pairs, x.shape[2] - 2 * pairs], dim=3)
        other = self._moved(other, -1)
        larger, smaller = torch.maximum(own, other), torch.minimum(own, other)
        if (swapped := _replacement(lambda: (other > own).to(x.dtype), self.uniform)) is not None:
            larger, smaller = own + swapped * (other - own), other + swapped * (own - other)
        return torch.cat([larger, self._moved(smaller, 1), rest], dim=3).flatten(1, 2)

    def _moved(self, x: torch.Tensor, sign: int) -> torch.Tensor:
        """The four parts of the channels rolled one place down, up, right and left, or back."""
        steps = ((1, 0), (-1, 0), (0, 1), (0, -1))
        parts = zip(x.tensor_split(4, dim=3), steps, strict=True)
        return torch.cat([part.roll((sign * down, sign * right), (1, 2)) for part, (down, right) in parts], dim=3)


@torch.no_grad()
def fit_budgets(model: nn.Sequential, images: torch.Tensor) -> None:
    """Set the budgets of each layer of the sequence that never learned any to SHARE * window * the spread of the scores.

    The spread is the root of the mean variance within a window, over the tokens of `images` (n, c, h, w). Layers are set in
    order, so that each sees the ones before it as set.
    """
    if not any(isinstance(layer, CompetitiveAttention) for layer in model):
        return
    x = images
    for layer in model:
        if isinstance(layer, CompetitiveAttention) and not layer.log_budget.any():
            spread = layer.scores(x).var(-1, correction=0).mean((0, 1, 2)).sqrt().clamp(min=1e-6)
            layer.log_budget.copy_((SHARE * layer.window * spread / layer.budget).log() / GAIN)
        x = layer(x)
