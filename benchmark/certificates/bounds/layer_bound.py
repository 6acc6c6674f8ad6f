"""The local bound of a layer: what it does to a perturbation of its nominal input. Found by the layer's exact type.

Around a nominal input x, with an input change D of l2 norm at most d:
  bound(d)              >= ||f(x + D) - f(x)||
  jvp(columns)          =  J columns, J the nominal Jacobian (Jacobian-vector products)
  jacobian_norm         >= ||J||
  remainder(p)          >= ||R||, R = f(x + D) - f(x) - J D, for all D of the set p (see `PerturbationSet`)
  remainder_along(a, p) >= -<a, R>, a bound of what R can take from a margin with gradient a at the output
  rounding(d)           >= ||fl(f)(x + D) - f(x + D)||, fl(f) the layer as float32 runs it (rounding.py)
  everywhere            >= ||f(y) - f(z)|| / ||y - z|| for all y and z: the global Lipschitz constant

Columns are (directions, n, *shape), best laid out in memory as (n, *shape, directions); a is (n, rivals, *shape); float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, singledispatch

import torch
from torch import nn

from benchmark.layers.kinds import shown
from benchmark.runtime.errors import BenchmarkError

from .rounding import LARGEST, size
from .spectral import psd_norm_upper, spectral_norm_upper

UP = 1 + 1e-12  # float64 rounding of one formula


def or_infinite(bound: torch.Tensor) -> torch.Tensor:
    """Return the bound, infinite where it is NaN (0 times infinity, say), which bounds nothing."""
    return torch.where(bound.isnan(), torch.inf, bound)


def vjp(layer: nn.Module, x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """Return J^T a of one layer at x, a vector-Jacobian product: (n, rivals, *output) to (n, rivals, *input)."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        y = layer(x)
        parts = [torch.autograd.grad(y, x, part, retain_graph=True)[0] for part in a.unbind(1)]
    return torch.stack(parts, dim=1)


def per_image(numbers: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Reshape (n,) to (n, 1, ...), with as many axes as `like`."""
    return numbers.reshape(-1, *[1] * (like.ndim - 1))


def jacobian_norms(derivative: Callable[[torch.Tensor, slice], torch.Tensor], x: torch.Tensor, most: float) -> torch.Tensor:
    """Return the norms (n,) of Jacobians formed one at a time, at most `most`.

    Args:
        derivative: J columns for columns (directions, 1, *shape) and the images of a slice.
    """
    entries = x[0].numel()
    basis = torch.eye(entries, dtype=x.dtype, device=x.device).reshape(entries, 1, *x.shape[1:])
    formed = (derivative(basis, slice(i, i + 1)).reshape(entries, entries) for i in range(len(x)))
    norms = [spectral_norm_upper(jacobian) * (1 + 1e-9) + 1e-12 for jacobian in formed]
    return torch.stack(norms).clamp(max=most) if norms else x.new_zeros(0)


@dataclass(frozen=True)
class PerturbationSet:
    """The input changes of a layer: all D = L xi + rest with ||xi|| <= radius, ||rest|| <= rho and ||D|| <= delta."""

    columns: torch.Tensor  # L: (directions, n, *shape)
    radius: torch.Tensor  # (n,)
    rho: torch.Tensor  # (n,)
    delta: torch.Tensor  # (n,)

    def largest_entries(self) -> torch.Tensor:
        """Return the largest |D_i|, entry by entry: (n, *shape)."""
        rows = torch.linalg.vector_norm(self.columns, dim=0)
        radius, rho, delta = (per_image(part, rows) for part in (self.radius, self.rho, self.delta))
        return torch.minimum(radius * rows + rho, delta) * UP

    def weighted_squares(self, weight: torch.Tensor) -> torch.Tensor:
        """Return a bound of sum_i weight_i D_i^2, for weights >= 0 (n, rivals, entries): (n, rivals).

        The root of the sum is ||diag(sqrt weight) (L xi + rest)||: at most radius ||diag(sqrt weight) L|| + rho max sqrt
        weight, and at most delta max sqrt weight.
        """
        rows = self.columns.flatten(2).permute(1, 2, 0)  # (n, entries, directions)
        most = weight.amax(2).sqrt()
        if rows.shape[1] <= rows.shape[2]:
            root = weight.sqrt()
            form = root[..., None] * (rows @ rows.mT)[:, None] * root[..., None, :]
        else:
            form = torch.einsum("nup,nru,nuq->nrpq", rows, weight, rows)
        through = self.radius[:, None] * psd_norm_upper(form).sqrt() + self.rho[:, None] * most
        return torch.minimum(through, self.delta[:, None] * most) ** 2 * (1 + 1e-9)


class LayerBound:
    """The bounds of a linear layer, given by its map without the constant, a bound of its norm and its rounding.

    Layers that are not linear override the methods. Bounds map (n,) to (n,).
    """

    has_jvp = True  # whether `jvp` and `remainder` can be computed
    name: str  # of the layer's type; set by `exact_layer_bound`
    input_size: torch.Tensor  # (n,) norms of the nominal inputs; set by `exact_layer_bound`

    def __init__(
        self,
        linear: Callable[[torch.Tensor], torch.Tensor],
        jacobian_norm: float | torch.Tensor,
        rounding: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        self.linear, self.jacobian_norm, self._rounding = linear, jacobian_norm, rounding

    def bound(self, delta: torch.Tensor) -> torch.Tensor:
        """Return an upper bound of ||f(x + D) - f(x)|| over ||D|| <= delta: (n,)."""
        return delta * self.jacobian_norm

    @cached_property
    def everywhere(self) -> float:
        """Return the global Lipschitz constant; raise a BenchmarkError where none is known."""
        if type(self) is not LayerBound:
            raise BenchmarkError(f"no global Lipschitz constant is known for the layer {self.name}")
        return float(torch.as_tensor(self.jacobian_norm, dtype=torch.float64).max())

    def global_bound(self, delta: torch.Tensor) -> torch.Tensor:
        """Return how far the float32 output can move, by `everywhere` and `rounding` alone."""
        return (self.everywhere * delta + self.rounding_in_range(delta)) * UP

    def quick_bound(self, delta: torch.Tensor) -> torch.Tensor:
        """Return a cheaper, looser `bound`, for the first pass over many images."""
        return self.bound(delta)

    def jvp(self, columns: torch.Tensor) -> torch.Tensor:
        """Return J columns: (directions, n, *input shape) to (directions, n, *output shape)."""
        return self.linear(columns.flatten(0, 1)).unflatten(0, columns.shape[:2])

    def remainder(self, perturbation: PerturbationSet) -> torch.Tensor:
        """Return an upper bound of ||f(x + D) - f(x) - J D|| over the set: (n,)."""
        return torch.zeros_like(perturbation.delta)

    def remainder_along(self, a: torch.Tensor, perturbation: PerturbationSet) -> torch.Tensor:
        """Return an upper bound of -<a, f(x + D) - f(x) - J D> over the set: (n, rivals)."""
        return torch.linalg.vector_norm(a.flatten(2), dim=2) * self.remainder(perturbation)[:, None] * UP

    def remainder_along_elementwise(self, a: torch.Tensor, perturbation: PerturbationSet) -> torch.Tensor:
        """Return a cheaper `remainder_along`, element by element, where a layer also bounds all elements together."""
        return self.remainder_along(a, perturbation)

    def choose_relaxation(self, perturbation: PerturbationSet) -> None:
        """Replace the Jacobian by another linear map (CROWN's choice of slopes), to make the remainder over
        `perturbation` small.

        From then on `jvp` applies that map, whose norm is at most `jacobian_norm`, and `remainder` bounds what it leaves
        out, over any set of perturbations.
        """

    def relax_for_rival(self, a: torch.Tensor, perturbation: PerturbationSet) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the linear relaxation that suits a margin with gradient a (n, rivals, *output) best.

        Returns:
            (taken, b), taken (n, rivals) and b (n, rivals, *shape), such that <a, f(x + D) - f(x)> >= <b, D> - taken; or
            None where a layer has nothing better than its nominal Jacobian.
        """
        return None

    def rounding(self, delta: torch.Tensor) -> torch.Tensor:
        """Return an upper bound of the norm of float32's rounding at x + D, over ||D|| <= delta: (n,)."""
        return self._rounding(delta)

    def rounding_in_range(self, delta: torch.Tensor) -> torch.Tensor:
        """Return `rounding`, infinite where values could leave float32's range."""
        return torch.where(self.input_size + delta <= LARGEST, self.rounding(delta), torch.inf)


class ElementwiseBound(LayerBound):
    """A layer that acts on each entry by itself: its Jacobian multiplies by `slopes`."""

    slopes: torch.Tensor  # like the nominal inputs

    def jvp(self, columns: torch.Tensor) -> torch.Tensor:
        return columns * self.slopes


class NonExpansiveBound(ElementwiseBound):
    """A 1-Lipschitz elementwise layer, made of minima, maxima and signs, which round nothing."""

    everywhere = 1.0

    def bound(self, delta: torch.Tensor) -> torch.Tensor:
        return delta

    def rounding(self, delta: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(delta)


REFUSED: dict[type[nn.Module], str] = {}  # layers without a bound, and why; each family's file names its own


@singledispatch
def layer_bound(layer: nn.Module, x: torch.Tensor) -> LayerBound:
    """Return the `LayerBound` of `layer` around nominal inputs x (n, *shape), float64.

    Raises:
        BenchmarkError: the layer has none, or x has a shape for which its bound does not hold.
    """
    raise BenchmarkError(
        f"no bound is declared for the layer {type(layer).__name__}; the certificate is refused rather than guessed"
    )


def has_bound(layer: nn.Module) -> bool:
    """Return whether a bound is declared for a layer of exactly this type; a subclass may compute something else."""
    from . import families  # noqa: F401  they import this file

    return type(layer) in layer_bound.registry


def exact_layer_bound(layer: nn.Module, x: torch.Tensor) -> LayerBound:
    """Return the bound of a layer at x.

    Raise a BenchmarkError for a subclass of a known layer, or an input that is not finite.
    """
    if not has_bound(layer):
        if reason := REFUSED.get(type(layer)):
            raise BenchmarkError(reason)
        return layer_bound.dispatch(object)(layer, x)
    if not torch.isfinite(x).all():
        raise BenchmarkError(f"the layer {type(layer).__name__} is given NaN or infinity; the certificate is refused")
    bound = layer_bound(layer, x)
    bound.name, bound.input_size = type(layer).__name__, size(x)
    return bound


def needs_axes(layer: nn.Module, x: torch.Tensor, ndim: int) -> None:
    """Raise a BenchmarkError where x has other than `ndim` axes."""
    if x.ndim != ndim:
        raise BenchmarkError(f"the layer {type(layer).__name__} needs {ndim} axes; it is given shape {tuple(x.shape)}")


def needs_grid(layer: nn.Module, x: torch.Tensor, side: int, width: int | None = None) -> None:
    """Raise a BenchmarkError where x is not side x side tokens of an image, of `width` channels if given."""
    needs_axes(layer, x, 3)
    whole(layer, 1, x.shape[1], side=side)
    if x.shape[1:] != (side**2, width or x.shape[2]):
        tokens = f"{side}x{side} tokens of {width or x.shape[2]} channels"
        raise BenchmarkError(f"{type(layer).__name__} needs {tokens}; it is given shape {tuple(x.shape)}")


def unbiased(layer: nn.Module, *linears: nn.Module) -> None:
    """Raise a BenchmarkError where one of a layer's maps has a bias."""
    if any(linear.bias is not None for linear in linears):
        raise BenchmarkError(f"{type(layer).__name__} has a bias, which its bound excludes; the certificate is refused")


def within(layer: nn.Module, least: float, most: float, **arguments: object) -> None:
    """Raise a BenchmarkError for an argument that is no number from `least` to `most`, for which the bound is proven."""
    for name, value in arguments.items():
        if type(value) not in (int, float) or not least <= value <= most:  # type: ignore[operator]
            layer_with = f"{type(layer).__name__} with {name} {shown(value)}"
            raise BenchmarkError(f"{layer_with} has no bound here; it should be a number from {least:g} to {most:g}")


def whole(layer: nn.Module, least: int, most: int, **arguments: object) -> None:
    """Raise a BenchmarkError for an argument that is no whole number from `least` to `most`."""
    within(layer, least, most, **arguments)
    for name, value in arguments.items():
        if type(value) is not int:
            raise BenchmarkError(f"{type(layer).__name__} with {name} {shown(value)} has no bound here; it should be whole")
