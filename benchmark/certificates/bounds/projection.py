"""The bound of LayerProject, by the exact sensitivity of each token's projection onto a ball."""

from __future__ import annotations

import math

import torch

from benchmark.layers.tokens import LayerProject

from .layer_bound import UP, LayerBound, PerturbationSet, layer_bound, needs_axes, within
from .rounding import LARGEST, covered, gamma, size

TINY_BALL = 1e-3  # of a token's length; down to it what cancels is within UP


@layer_bound.register(LayerProject)
class ProjectionBound(LayerBound):
    """Tokens x of norm r and direction u onto the ball R, with D moving one by at most d < r, by p = <u, D> along it.

    Outside (r > R) the map is h(y) = R y / |y|, less (R - |y|)+ y / |y| once y enters the ball. The first bends by at most
    (R / sqrt 3) |D|^2 / (r - d)^2; the second is at most (p- - (r - R))+, p- = -p, since |x + D| >= r + p. Inside, the map
    is y less (|y| - R)+ y / |y|, at most (p + d^2 / (2 (r - d)) - (R - r))+. Either way the kink is a ReLU of the radial
    move p alone, |p| <= radius ||u^T L|| + rho, and takes from a margin only along y / |y|, which lies within
    sqrt(2 - 2 sqrt(1 - d^2 / r^2)) of u. Tokens with r <= d: at most (1 + ||J_t||) d.

    float64 errs in r by c = (width + 8) 2^-53 relatively, which moves the bounds by r / R times as much. Where UP does not
    cover that, they use `least`, a lower bound of r.
    """

    everywhere = 1.0  # projection onto a convex set

    def __init__(self, layer: LayerProject, x: torch.Tensor) -> None:
        needs_axes(layer, x, 3)
        within(layer, 1 / LARGEST, LARGEST, radius=layer.radius)
        ball = layer.radius
        self.norms, self.ball = torch.linalg.vector_norm(x, dim=-1), ball
        off = (x.shape[2] + 8) * 2.0**-53
        self.least = torch.where(self.norms * off <= 1e-12 * ball, self.norms, self.norms * (1 - off))
        self.unit = x / self.norms.clamp(min=1e-300)[..., None]
        self.outside = self.norms > ball
        # at the kink itself automatic differentiation may take either side's Jacobian, so both sides' remainders count
        self.tied = (self.norms - ball).abs() <= 1e-9 * ball
        self.scales = torch.where(self.outside, ball / self.norms.clamp(min=1e-300), 1.0)
        self.jacobian_norm = self.scales.amax(1) * UP
        self.size, self.roof = size(x), ball * math.sqrt(x.shape[1])
        self.gamma = gamma(x.shape[2] / 2 + 12)  # the norm's sum under a root, the quotient, the product

    def rounding(self, delta: torch.Tensor) -> torch.Tensor:
        return covered(self.gamma * (self.size + delta).clamp(max=self.roof))

    def bound(self, delta: torch.Tensor) -> torch.Tensor:
        return projection_bound(self.least, self.ball, delta)

    def jvp(self, columns: torch.Tensor) -> torch.Tensor:
        # (n, tokens, d, directions), as it lies in memory
        moved = columns.permute(1, 2, 3, 0) * self.scales[..., None, None]
        unit = self.unit[..., None]
        moved -= (unit * self.outside[..., None, None]) @ (unit.mT @ moved)
        return moved.permute(3, 0, 1, 2)

    def _bends(self, perturbation: PerturbationSet) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the coefficient of |D_t|^2 outside, and the largest kink: each (n, tokens)."""
        d, r = perturbation.delta[:, None], self.least
        room = (r - d).clamp(min=1e-300)
        near = r > d
        square = torch.where((self.outside | self.tied) & near, self.ball / math.sqrt(3) / room**2, 0.0)
        through = self.unit[..., None, :] @ perturbation.columns.permute(1, 2, 3, 0)
        rows = torch.linalg.vector_norm(through[..., 0, :], dim=-1)  # ||u^T L||: (n, tokens)
        radial = torch.minimum(perturbation.radius[:, None] * rows + perturbation.rho[:, None], d)
        sideways = torch.where(self.outside & ~self.tied, 0.0, d**2 / (2 * room))
        kink = (radial * UP + sideways * UP - (r - self.ball).abs()).clamp(min=0)
        return square * UP, torch.where(near, kink, (1 + self.scales) * d)

    def remainder(self, perturbation: PerturbationSet) -> torch.Tensor:
        square, kink = self._bends(perturbation)
        return (square.amax(1) * perturbation.delta**2 + torch.linalg.vector_norm(kink, dim=1)) * UP

    def remainder_along(self, a: torch.Tensor, perturbation: PerturbationSet) -> torch.Tensor:
        square, kink = (bend[:, None] for bend in self._bends(perturbation))
        sizes, d = torch.linalg.vector_norm(a, dim=-1), perturbation.delta[:, None]
        length = self.least.clamp(min=1e-300)
        turn = ((d / length) * _chord_over_sine(length, d))[:, None] * (1 + 1e-9)
        inward = ((a * self.unit[:, None]).sum(-1) + sizes * turn).clamp(min=0)
        taken = torch.where((self.least > d)[:, None], torch.minimum(inward, sizes), sizes) * kink
        return ((sizes * square).amax(2) * d**2 + taken.sum(2)) * UP


def projection_bound(norms: torch.Tensor, ball: float, radius: torch.Tensor) -> torch.Tensor:
    """How far the tokens' projections onto the ball move when the tokens move by at most `radius` together.

    Exact for one token up to radius norm + ball: the radius itself inside the ball; outside, the largest angle
    (e^2 <= r^2 - R^2) or the point of the ball nearest to leaving it. Each token's squared bound is convex in its
    squared budget and 0 at 0, so the worst case spends all on one token: the maximum over tokens.

    Where R is tiny beside r, differences of squares would lose what they are about, and the place where the forms meet with
    it. There r and e are within a factor of 2 of each other, so that e - r is exact. The first form, squared, is convex in
    e^2 <= r^2 and the second its tangent there, so that a first form used too far is a bound still, and a second form too
    early is none: hence the 1e-14.

    Args:
        norms: (n, tokens) norms r of the nominal tokens.
        ball: R.
        radius: (n,) budgets e. No bound (n,) is above them, nor above 2 R sqrt(tokens).
    """
    r, e = norms.clamp(min=1e-300), radius[:, None].expand_as(norms)
    by_angle = ball * (e / r) * _chord_over_sine(r, e)
    tiny = ball < TINY_BALL * r
    squares = torch.where(tiny, (e - r + ball) * (e + r - ball), e**2 - (r - ball) ** 2)
    by_chord = ((ball / r) * squares.clamp(min=0)).sqrt()
    turns = torch.where(tiny, (e**2 <= r**2 * (1 - (ball / r) ** 2) * (1 + 1e-14)) & (e <= r), e**2 <= r**2 - ball**2)
    outside = torch.where(turns, by_angle, by_chord)
    most = torch.where(r <= ball, e, outside).amax(1) * UP
    return torch.minimum(most, radius).clamp(max=2 * ball * math.sqrt(norms.shape[1]) * UP)


def _chord_over_sine(r: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
    """Return chord over sine of the largest angle by which e can turn a vector of length r >= e. The sine is e / r, the chord
    on the unit sphere sqrt(2 (1 - c)) = (e / r) sqrt(2 / (1 + c)), c = sqrt(1 - (e / r)^2); the second form loses nothing for
    small angles. For e within 1% of r, c is computed from r - e, which is exact.
    """
    near = ((r - e).clamp(min=0) * (r + e)).sqrt() / r
    cosine = torch.where(e > 0.99 * r, near, (1 - (e / r) ** 2).clamp(min=0).sqrt())
    return (2 / (1 + cosine)).sqrt()
