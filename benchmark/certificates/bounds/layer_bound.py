"""Bounds of what one layer does to a perturbation of its nominal input: the `LayerBound`.

Around a nominal input x, with an input change D of l2 norm at most d:
  bound(d)              >= ||f(x + D) - f(x)||
  jvp(columns)          =  J columns, J the nominal Jacobian (Jacobian-vector products)
  jacobian_norm         >= ||J||
  remainder(p)          >= ||R||, R = f(x + D) - f(x) - J D, for all D of the set p (see `PerturbationSet`)
  remainder_along(a, p) >= -<a, R>, a bound of what R can take from a margin with gradient a at the output
  rounding(d)           >= ||fl(f)(x + D) - f(x + D)||, fl(f) the layer as float32 runs it (rounding.py)

Columns are (directions, n, *shape), best laid out in memory as (n, *shape, directions); a is (n, rivals, *shape); float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from benchmark.certificates.bounds.rounding import LARGEST
from benchmark.certificates.bounds.spectral import spectral_norm_upper

UP = 1 + 1e-12  # float64 rounding of one formula


def or_infinite(bound: torch.Tensor) -> torch.Tensor:
    """The bound, infinite where it is NaN (0 times infinity, say): such a number bounds nothing."""
    return torch.where(bound.isnan(), torch.inf, bound)


def vjp(layer: nn.Module, x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """J^T a of one layer at x, a vector-Jacobian product: (n, rivals, *output) to (n, rivals, *input)."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        y = layer(x)
        parts = [torch.autograd.grad(y, x, part, retain_graph=True)[0] for part in a.unbind(1)]
    return torch.stack(parts, dim=1)


def jacobian_norms(derivative: Callable[[torch.Tensor, slice], torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
    """The norms of Jacobians that are formed one at a time, by images: `derivative` of columns around those chosen."""
    entries = x[0].numel()
    basis = torch.eye(entries, dtype=x.dtype, device=x.device).reshape(entries, 1, *x.shape[1:])
    formed = (derivative(basis, slice(i, i + 1)).reshape(entries, entries) for i in range(len(x)))
    return [spectral_norm_upper(one) * (1 + 1e-9) + 1e-12 for one in formed]


@dataclass(frozen=True)
class PerturbationSet:
    """The input changes of a layer: all D = L xi + rest with ||xi|| <= radius, ||rest|| <= rho and ||D|| <= delta."""

    columns: torch.Tensor  # L: (directions, n, *shape)
    radius: torch.Tensor  # (n,)
    rho: torch.Tensor  # (n,)
    delta: torch.Tensor  # (n,)


class LayerBound:
    """The bounds of a linear layer, given by its map without the constant, a bound of its norm and its rounding.

    Layers that are not linear override the methods.
    """

    def __init__(
        self,
        linear: Callable[[torch.Tensor], torch.Tensor],
        jacobian_norm: float | torch.Tensor,
        rounding: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        self.linear, self.jacobian_norm, self._rounding = linear, jacobian_norm, rounding

    def bound(self, delta: torch.Tensor) -> torch.Tensor:
        """(n,) to (n,)."""
        return delta * self.jacobian_norm

    def quick_bound(self, delta: torch.Tensor) -> torch.Tensor:
        """A cheaper and looser bound, for the first pass over many images."""
        return self.bound(delta)

    def jvp(self, columns: torch.Tensor) -> torch.Tensor:
        """(directions, n, *shape) to the same of the output."""
        return self.linear(columns.flatten(0, 1)).unflatten(0, columns.shape[:2])

    def remainder(self, perturbation: PerturbationSet) -> torch.Tensor:
        """(n,)."""
        return torch.zeros_like(perturbation.delta)

    def remainder_along(self, a: torch.Tensor, perturbation: PerturbationSet) -> torch.Tensor:
        """(n, rivals)."""
        return torch.linalg.vector_norm(a.flatten(2), dim=2) * self.remainder(perturbation)[:, None] * UP

    def remainder_along_elementwise(self, a: torch.Tensor, perturbation: PerturbationSet) -> torch.Tensor:
        """A cheaper, looser `remainder_along`, element by element, where a layer also has one for all elements together."""
        return self.remainder_along(a, perturbation)

    def choose_relaxation(self, perturbation: PerturbationSet) -> None:
        """Lets a layer replace its Jacobian by another linear map (CROWN's choice of slopes), to make the remainder over
        `perturbation` small.

        From then on `jvp` applies that map, whose norm is at most `jacobian_norm`, and `remainder` bounds what it leaves
        out, over any set of perturbations.
        """

    def relax_for_rival(
        self, a: torch.Tensor, perturbation: PerturbationSet
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The linear relaxation that suits a margin with gradient a (n, rivals, *output) at the layer's output best.

        Returns:
            (taken, b), taken (n, rivals) and b (n, rivals, *shape), such that <a, f(x + D) - f(x)> >= <b, D> - taken; or
            None where a layer has nothing better than its nominal Jacobian.
        """
        return None

    has_jvp = True  # whether `jvp` and `remainder` can be computed

    def rounding_in_range(self, delta: torch.Tensor) -> torch.Tensor:
        """`rounding` (n,), infinite where values could leave float32's range."""
        return torch.where(self.input_size + delta <= LARGEST, self.rounding(delta), torch.inf)

    input_size: torch.Tensor  # (n,) norms of the nominal inputs, set by `exact_layer_bound`

    def reuse(self, earlier: LayerBound, rows: torch.Tensor) -> None:
        """Takes over costly results of `earlier`, a bound of the same layer whose inputs `rows` are this one's inputs."""

    def rounding(self, delta: torch.Tensor) -> torch.Tensor:
        """(n,) to (n,)."""
        return self._rounding(delta)


class ElementwiseBound(LayerBound):
    """Of a layer that acts on each entry by itself: its Jacobian multiplies by `slopes`."""

    slopes: torch.Tensor  # like the nominal inputs

    def jvp(self, columns: torch.Tensor) -> torch.Tensor:
        return columns * self.slopes


class NonExpansiveBound(ElementwiseBound):
    """Of an elementwise layer that is 1-Lipschitz, and made of minima, maxima and signs, which round nothing."""

    def bound(self, delta: torch.Tensor) -> torch.Tensor:
        return delta

    def rounding(self, delta: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(delta)
