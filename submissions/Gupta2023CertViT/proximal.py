"""The proximal projection of one layer (Gupta and Verma 2023, "CertViT", problem 2 and algorithms 1 and 2).

A trained layer y = R(W0 x + b), R the proximity operator of a convex f, gets the weights of least g(W), a measure such as the
spectral norm, among those that still fit its outputs:

    minimise g(W) subject to c_j(W) = mean over batch j of dist(W x + b - y, subdifferential of f at y)^2 - eta <= 0.

The problem is convex, and W0 is feasible with c_j = -eta. Douglas-Rachford iterations alternate between the proximity
operator of g and the projection onto the feasible set, which half-spaces approximate, one a batch. All is float64.

Here R clamps to [low, high], the proximity operator of that interval's indicator: identity (-inf, inf), ReLU (0, inf),
clipped ReLU (0, theta). GELU is no proximity operator, so a layer before it counts as followed by the identity. The paper's
"Lipschitz measure", the sum of |W|, is a loose upper bound of the spectral norm; `spectral_prox` is this project's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmark.runtime.errors import BenchmarkError

PARALLEL = 1e-15  # relative to mu nu: normals of half-spaces count as parallel below it, since rounding leaves no exact 0
TOLERANCE = 1e-2  # relative to eta: how far outside the accuracy set a result may lie
EMPTY = "no weights keep the layer's outputs to this eta on every batch; raise eta"


def soft_threshold(z: Tensor, gamma: float) -> Tensor:
    """Apply the proximity operator of gamma times the sum of |W|: move every entry towards 0 by gamma. Any shape."""
    return z.sign() * (z.abs() - gamma).clamp(min=0)


def quantile_threshold(z: Tensor, gamma: float) -> Tensor:
    """Apply the soft threshold at the gamma-quantile of the nonzero |z|, as CertViT's released code does. Any shape.

    It is no proximity operator, since the threshold depends on z: what iterations converge to is not known.
    """
    sizes = z[z != 0].abs().sort().values
    if not len(sizes):
        return z
    place = gamma * (len(sizes) - 1)  # torch.quantile refuses more than 16 million values
    below = sizes[math.floor(place)]
    return soft_threshold(z, float(below + (place - math.floor(place)) * (sizes[math.ceil(place)] - below)))


def onto_l1_ball(values: Tensor, radius: float) -> Tensor:
    """Project values (k,) >= 0 in falling order onto sums of at most `radius` > 0 (Duchi et al. 2008)."""
    if float(values.sum()) <= radius:
        return values
    levels = (values.cumsum(0) - radius) / torch.arange(1, len(values) + 1, device=values.device)
    kept = int((values > levels).sum())
    return (values - levels[kept - 1]).clamp(min=0)


def spectral_prox(z: Tensor, gamma: float) -> Tensor:
    """Apply the proximity operator of gamma times the spectral norm: (out, in) to the same.

    By Moreau's identity it is U diag(s - p) V^T, p the projection of the singular values s onto the l1 ball of radius gamma,
    since the dual norm is the sum of singular values. It cuts the largest to one level, by gamma in all.
    """
    u, s, vh = torch.linalg.svd(z, full_matrices=False)
    return (u * (s - onto_l1_ball(s, gamma))) @ vh


@dataclass(frozen=True)
class Rows:
    """Inputs and outputs of a layer whose output is W x + b clamped to [low, high], all float64."""

    x: Tensor  # (n, in)
    y: Tensor  # (n, out), equal to a bound where the layer met it
    low: float = -math.inf
    high: Tensor | float = math.inf  # broadcasts against y; where it is `low` the unit is constant


def residual(z: Tensor, rows: Rows) -> Tensor:
    """Return z - y less its nearest point of the subdifferential at y; its norm is the distance. (n, out) to the same.

    The subdifferential is {0} between the bounds, (-inf, 0] at `low`, [0, inf) at `high`, and all numbers where they meet.
    """
    e = z - rows.y
    e = torch.where(rows.y > rows.low, e, e.clamp(min=0))
    return torch.where(rows.y < rows.high, e, e.clamp(max=0))


class AccuracySet:
    """The convex set of weights W (out, in) whose mean squared distance is at most eta on every batch (equations 9 to 13).

    Args:
        batches: each returns the rows of a batch when called, so that unfolded patches need not be kept.
        bias: (out,) float64, left as it is.
        eta: above 0, in squared units of the layer's output, summed over its units; the paper's is 0.01.
    """

    def __init__(self, batches: Sequence[Callable[[], Rows]], bias: Tensor | None, eta: float) -> None:
        self.batches, self.bias, self.eta = batches, bias, eta

    def distance(self, weight: Tensor, rows: Rows) -> tuple[float, Tensor]:
        """Return a batch's mean squared distance, c_j + eta, and its gradient (out, in): 2/n sum of residual x^T."""
        z = rows.x @ weight.mT
        r = residual(z if self.bias is None else z + self.bias, rows)
        return float(r.square().sum()) / len(r), r.mT @ rows.x * (2 / len(r))

    def distances(self, weight: Tensor) -> list[float]:
        """Return the mean squared distance of each batch."""
        return [self.distance(weight, rows())[0] for rows in self.batches]

    def project(self, point: Tensor, *, sweeps: int) -> tuple[Tensor, int]:
        """Return nearly the projection of `point` onto the set, and the number of sweeps (Combettes 2003; algorithm 2).

        For a violated batch, c_j + <gradient, W' - W> <= 0 is a half-space that holds the set. The next iterate is the point
        nearest to `point` in it and in one more half-space, which stands for all earlier ones. A sweep takes each batch in
        turn, and the last sweep finds none violated. Iterates come from outside. With one batch they converge fast, with
        several their error falls about as 1 / sweeps; `distances` tells how far outside they are.

        Raises:
            BenchmarkError: half-spaces exclude each other or iterates diverge, since no weights keep every batch; with few
                sweeps only `distances` shows it.
        """
        weight = point
        for sweep in range(sweeps):
            kept = True
            for batch in self.batches:
                square, gradient = self.distance(weight, batch())
                if square > self.eta:
                    kept, steep = False, float(gradient.square().sum())
                    if not steep:
                        raise BenchmarkError(EMPTY)
                    weight = _nearest(point, weight, gradient * ((square - self.eta) / steep))
            if kept:
                return weight, sweep + 1
        return weight, sweeps

    def pulled_inside(self, weight: Tensor, centre: Tensor) -> Tensor:
        """Return `weight` if it keeps every batch within the tolerance, else a point on the way to `centre` that does.

        Guarantee: if `centre` keeps every batch, the result's mean squared distances are at most (1 + TOLERANCE) eta. The
        root r of a batch's mean square is convex in W, as a norm of distances to convex sets. At centre + t (weight - centre)
        it is at most (1 - t) r(centre) + t r(weight), which is at most sqrt(eta) for the t used. A convex measure g is
        likewise at most (1 - t) g(centre) + t g(weight).
        """
        most, share = math.sqrt(self.eta), 1.0
        for square, near in zip(self.distances(weight), map(math.sqrt, self.distances(centre)), strict=True):
            if square > self.eta * (1 + TOLERANCE):
                share = min(share, (most - near) / (math.sqrt(square) - near) if most > near else 0.0)
        return weight if share == 1 else centre + share * (weight - centre)


def _nearest(point: Tensor, weight: Tensor, step: Tensor) -> Tensor:
    """Project `point` onto two half-spaces: the one in which `weight` is nearest to it, and the one beyond weight - step.

    Names are those of Combettes 2003: pi, mu, nu and xi = mu nu - pi^2, which is 0 where the normals are parallel.
    """
    back = point - weight
    pi, mu, nu = float((back * step).sum()), float(back.square().sum()), float(step.square().sum())
    xi = mu * nu - pi * pi
    if not math.isfinite(xi):  # iterates diverge where the set is empty
        raise BenchmarkError(EMPTY)
    if xi <= PARALLEL * mu * nu:
        if pi < 0:
            raise BenchmarkError(EMPTY)
        return weight - step
    if pi * nu >= xi:
        return point - (1 + pi / nu) * step
    return weight + (nu / xi) * (pi * back - mu * step)


def douglas_rachford(
    start: Tensor, prox: Callable[[Tensor], Tensor], project: Callable[[Tensor], Tensor], *, relaxation: float, outer: int
) -> Tensor:
    """Run algorithm 1 from Z = `start`: `outer` times W = prox(Z), Z += relaxation (project(2 W - Z) - W); return prox(Z).

    If `prox` is that of gamma g with a fixed gamma > 0, W converges to a point of least g in the set. Before, W already has
    zeros or a low norm, but lies outside the set.

    Args:
        relaxation: above 0 and below 2; the paper's are 1.1 to 1.3.
    """
    z = start
    for _ in range(outer):
        weight = prox(z)
        z = z + relaxation * (project(2 * weight - z) - weight)
    return prox(z)
