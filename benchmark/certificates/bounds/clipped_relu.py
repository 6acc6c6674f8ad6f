"""Bounds of the clipped ReLU f(z) = min(max(z, 0), theta), theta >= 0, unit by unit, by its two kinks.

A unit z moves by D, |D| <= m; R = f(z + D) - f(z) - s D, s the nominal slope. Where theta = 0, f is constant and R = 0.
Else, with (.)+ = max(., 0):
  0 <= z <= theta: -(m - (theta - z))+ <= R <= (m - z)+, whatever s in [0, 1] stands at the kinks and s = 1 between them
                   (at z = theta, D >= 0 gives -s D >= -m; -theta <= D <= 0 gives (1 - s) D >= -m and <= 0; and D < -theta
                   gives -theta - s D, between -theta and m - theta; z = 0 mirrors it);
  z < 0 (s = 0):   0 <= R <= min((m - |z|)+, theta), since f(z) = 0 and f(z + D) <= (D - |z|)+;
  z > theta:       the mirror image, -min((m - (z - theta))+, theta) <= R <= 0.
So the kink at 0 can only raise the output above its linear part, and the kink at theta only lower it. Of a margin with
gradient a, R takes at most a+ (what theta's kink lowers) + (-a)+ (what 0's kink raises). Both are (|D| - b)+ at most, b the
distance of the kink, and so at most D^2 / (4 t) + t - b for every t >= b: one quadratic form over all units (quadratic.py).
"""

from __future__ import annotations

import torch

from benchmark.certificates.bounds.dispatch import layer_bound
from benchmark.certificates.bounds.layer_bound import UP, LayerBound, NonExpansiveBound, PerturbationSet
from benchmark.certificates.bounds.quadratic import largest_entries, weighted_squares
from benchmark.layers.clipped_relu import ClippedReLU
from benchmark.runtime.errors import BenchmarkError


class ClippedReLUBound(NonExpansiveBound):
    """Around pre-activations x (n, *shape), thresholds theta (*shape) >= 0."""

    OFFSET_FRACTIONS = (0.5, 0.1)  # of the largest move m: the t that are tried

    def __init__(self, x: torch.Tensor, theta: torch.Tensor) -> None:
        self.x, self.theta = x, theta
        inside, at_top = (x > 0) & (x < theta), (x == theta) & (theta > 0)
        self.slopes = inside.to(x.dtype) + at_top.to(x.dtype) / 2  # torch halves the derivative of a tie
        self.jacobian_norm = self.slopes.abs().flatten(1).amax(1)
        flat = theta == 0
        self.to_bottom = torch.where((x <= theta) & ~flat, x.abs(), torch.inf)  # how far the kink is that raises,
        self.to_top = torch.where((x >= 0) & ~flat, (theta - x).abs(), torch.inf)  # and the kink that lowers
        # between the kinks the linear part goes on for ever, beside them the output stays within [0, theta]
        self.most_raised = torch.where(x < 0, theta, torch.inf)
        self.most_lowered = torch.where(x > theta, theta, torch.inf)

    def _bends(self, largest: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """How far the remainder of each unit can lie below 0, and above: (n, *shape)."""
        lowered = torch.minimum((largest - self.to_top).clamp(min=0), self.most_lowered)
        raised = torch.minimum((largest - self.to_bottom).clamp(min=0), self.most_raised)
        return lowered, raised

    def remainder(self, perturbation: PerturbationSet) -> torch.Tensor:
        """Slopes of f and s lie in [0, 1], so |R| <= |D| as well."""
        bend = torch.maximum(*self._bends(largest_entries(perturbation)))
        return torch.minimum(torch.linalg.vector_norm(bend.flatten(1), dim=1), perturbation.delta) * UP

    def remainder_along(self, a: torch.Tensor, perturbation: PerturbationSet) -> torch.Tensor:
        largest = largest_entries(perturbation)
        lowered, raised = self._bends(largest)
        a, loses = a.flatten(2), a.flatten(2) > 0
        most = torch.where(loses, lowered.flatten(1)[:, None], raised.flatten(1)[:, None])
        least = (a.abs() * most).sum(2)
        kink = torch.where(loses, self.to_top.flatten(1)[:, None], self.to_bottom.flatten(1)[:, None])
        alpha = torch.where(most > 0, a.abs(), 0.0)
        kink, largest = torch.where(most > 0, kink, 0.0), largest.flatten(1)[:, None]
        for fraction in self.OFFSET_FRACTIONS:
            t = torch.maximum(kink, fraction * largest).clamp(min=1e-300)
            form = weighted_squares(alpha / (4 * t), perturbation)
            least = torch.minimum(least, form + (alpha * (t - kink)).sum(2))
        return least * (1 + 1e-9)


@layer_bound.register
def _(layer: ClippedReLU, x: torch.Tensor) -> LayerBound:
    if x.shape[1:] != layer.theta.shape:
        raise BenchmarkError(f"thresholds {tuple(layer.theta.shape)} do not fit inputs {tuple(x.shape[1:])}")
    return ClippedReLUBound(x, layer.theta.detach().clamp(min=0))
