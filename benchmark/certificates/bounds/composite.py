"""Bounds of layers made of layers: nn.Sequential inside a residual, and the residual."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import nn

from benchmark.layers.residual import Residual, WeightedResidual
from benchmark.runtime.errors import BenchmarkError

from .layer_bound import UP, LayerBound, PerturbationSet, exact_layer_bound, layer_bound, vjp
from .rounding import FLOAT64, TINY, UNIT32, covered, gamma, size
from .spectral import spectral_norm_upper
from .token_convolution import convolution_residual

# a perturbation set's columns at each layer's input and at the output, and their norms (n,)
Propagated = tuple[list[torch.Tensor], list[torch.Tensor]]


@layer_bound.register(nn.Sequential)
class SequentialBound(LayerBound):
    """f_m o ... o f_1. With J_k the nominal Jacobians and R_k the remainders, D_k = J_<k D + e_k, e_1 = 0, and
    e_(k+1) = J_k e_k + R_k(D_k). So the remainder is e_(m+1) = sum_k J_>k R_k(D_k); R_k takes from a margin with gradient a
    what it takes from one with gradient J_>k^T a. The parts' roundings are counted among the R_k: `bound`, `remainder` and
    `remainder_along` hold for the sequence as float32 runs it, and `rounding` adds nothing.
    """

    def __init__(self, layers: nn.Sequential, x: torch.Tensor) -> None:
        if not len(layers):
            raise BenchmarkError("an empty nn.Sequential has no bound; use nn.Identity")
        self.layers, self.inputs, self.layer_bounds = list(layers), [x], list[LayerBound]()
        for layer in self.layers:
            self.layer_bounds.append(exact_layer_bound(layer, self.inputs[-1]))
            self.inputs.append(layer(self.inputs[-1]))
        self._met: tuple[torch.Tensor, Propagated] | None = None

    @cached_property
    def jacobian_norm(self) -> torch.Tensor:  # type: ignore[override]
        total = self.inputs[0].new_ones(len(self.inputs[0]))
        for part in self.layer_bounds:
            total = total * part.jacobian_norm * UP
        return total

    @cached_property
    def everywhere(self) -> float:
        total = 1.0
        for part in self.layer_bounds:
            total *= part.everywhere * UP
        return total

    def global_bound(self, delta: torch.Tensor) -> torch.Tensor:
        for part in self.layer_bounds:
            delta = part.global_bound(delta)
        return delta

    @property
    def has_jvp(self) -> bool:  # type: ignore[override]
        return all(part.has_jvp for part in self.layer_bounds)

    def bound(self, delta: torch.Tensor, *, quick: bool = False) -> torch.Tensor:
        for part in self.layer_bounds:
            moved = part.quick_bound(delta) if quick else part.bound(delta)
            delta = (moved + part.rounding_in_range(delta)) * UP
        return delta

    def quick_bound(self, delta: torch.Tensor) -> torch.Tensor:
        return self.bound(delta, quick=True)

    def rounding(self, delta: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(delta)

    def jvp(self, columns: torch.Tensor) -> torch.Tensor:
        for part in self.layer_bounds:
            columns = part.jvp(columns)
        return columns

    def _propagated(self, columns: torch.Tensor) -> Propagated:
        if self._met is None or self._met[0] is not columns:  # the same for all radii of a search
            every = [columns]
            for part in self.layer_bounds:
                every.append(part.jvp(every[-1]))
            norms = [spectral_norm_upper(each.flatten(2).permute(1, 2, 0)) for each in every]
            self._met = (columns, (every, norms))
        return self._met[1]

    def _perturbations(self, perturbation: PerturbationSet) -> tuple[list[PerturbationSet], torch.Tensor]:
        """Return the perturbations of each layer's input, and a bound of ||e_(m+1)||."""
        columns, norms = self._propagated(perturbation.columns)
        perturbations, missed = [perturbation], torch.zeros_like(perturbation.delta)
        for part, pushed, norm in zip(self.layer_bounds, columns[1:], norms[1:], strict=True):
            move = perturbations[-1]
            rounding = part.rounding_in_range(move.delta)
            left = part.remainder(move) + rounding
            missed = (part.jacobian_norm * missed + left) * UP
            rho = (part.jacobian_norm * move.rho + left) * UP
            delta = torch.minimum(part.bound(move.delta) + rounding, norm * move.radius * UP + rho) * UP
            perturbations.append(PerturbationSet(pushed, move.radius, rho, delta))
        return perturbations[:-1], missed

    def remainder(self, perturbation: PerturbationSet) -> torch.Tensor:
        missed = self._perturbations(perturbation)[1]
        return torch.minimum(missed, self.bound(perturbation.delta) + self.jacobian_norm * perturbation.delta) * UP

    def remainder_along(self, a: torch.Tensor, perturbation: PerturbationSet) -> torch.Tensor:
        perturbations, _ = self._perturbations(perturbation)
        taken = torch.zeros_like(a.flatten(2)[:, :, 0])
        steps = list(zip(self.layers, self.layer_bounds, self.inputs, perturbations, strict=False))
        for layer, part, x, move in reversed(steps):
            rounding = torch.linalg.vector_norm(a.flatten(2), dim=2) * part.rounding_in_range(move.delta)[:, None]
            taken = taken + part.remainder_along(a, move) + rounding
            a = vjp(layer, x, a)
        return taken * UP


class ResidualBound(LayerBound):
    """x + body(x): the identity adds nothing to the body's remainder; the sum is rounded once more."""

    most: float | torch.Tensor = 1.0  # the body's largest factor

    def __init__(self, body: LayerBound, x: torch.Tensor, branch: torch.Tensor) -> None:
        self.body, self.size = body, size(x) + size(branch)

    @property
    def jacobian_norm(self) -> torch.Tensor:  # type: ignore[override]
        return (1 + self.most * torch.as_tensor(self.body.jacobian_norm, dtype=torch.float64)) * UP

    @cached_property
    def everywhere(self) -> float:
        return (1 + float(self.most) * self.body.everywhere) * UP

    def global_bound(self, delta: torch.Tensor) -> torch.Tensor:
        whole = delta + self.body.global_bound(delta)
        return (whole + UNIT32 * (self.size + whole) * FLOAT64 + TINY) * UP

    @property
    def has_jvp(self) -> bool:  # type: ignore[override]
        return self.body.has_jvp

    def quick_bound(self, delta: torch.Tensor) -> torch.Tensor:
        return (delta + self.most * self.body.quick_bound(delta)) * UP

    def bound(self, delta: torch.Tensor) -> torch.Tensor:
        return (delta + self.most * self.body.bound(delta)) * UP

    def rounding(self, delta: torch.Tensor) -> torch.Tensor:
        inside = self.body.rounding(delta)
        return covered(inside + UNIT32 * (self.size + delta + self.body.quick_bound(delta) + inside))

    def jvp(self, columns: torch.Tensor) -> torch.Tensor:
        return columns + self.body.jvp(columns)

    def remainder(self, perturbation: PerturbationSet) -> torch.Tensor:
        return self.body.remainder(perturbation)

    def remainder_along(self, a: torch.Tensor, perturbation: PerturbationSet) -> torch.Tensor:
        return self.body.remainder_along(a, perturbation)


class WeightedResidualBound(ResidualBound):
    """x + alpha * body(x), alpha over the last axis: J = I + diag(alpha) J_body. The body's remainder is multiplied by alpha;
    it takes from a margin with gradient a what it takes from one with gradient a * alpha. In float32 the product and the sum
    are each rounded once more.
    """

    def __init__(self, body: LayerBound, alpha: torch.Tensor, x: torch.Tensor, branch: torch.Tensor) -> None:
        self.body, self.alpha, self.most = body, alpha, alpha.abs().max()
        self.size, self.branch = size(x), size(branch)

    def global_bound(self, delta: torch.Tensor) -> torch.Tensor:
        branch = self.most * self.body.global_bound(delta)
        nominal = self.size + 2 * self.most * self.branch
        return (delta + branch + gamma(2) * (nominal + delta + 2 * branch) * FLOAT64 + TINY) * UP

    def rounding(self, delta: torch.Tensor) -> torch.Tensor:
        inside = self.body.rounding(delta)
        branch = self.most * (self.branch + self.body.quick_bound(delta) + inside)
        product = self.most * inside + UNIT32 * branch
        return covered(product + UNIT32 * (self.size + delta + branch + product))

    def jvp(self, columns: torch.Tensor) -> torch.Tensor:
        return columns + self.alpha * self.body.jvp(columns)

    def remainder(self, perturbation: PerturbationSet) -> torch.Tensor:
        return self.most * self.body.remainder(perturbation) * UP

    def remainder_along(self, a: torch.Tensor, perturbation: PerturbationSet) -> torch.Tensor:
        return self.body.remainder_along(a * self.alpha, perturbation) * UP


@layer_bound.register
def _(layer: Residual, x: torch.Tensor) -> LayerBound:
    branch = layer.body(x)
    if branch.shape != x.shape:
        raise BenchmarkError(f"the body of a residual changes the shape {tuple(x.shape)}; the certificate is refused")
    if (linear := convolution_residual(layer, x)) is not None:
        return linear
    return ResidualBound(exact_layer_bound(layer.body, x), x, branch)


@layer_bound.register
def _(layer: WeightedResidual, x: torch.Tensor) -> LayerBound:
    branch = layer.body(x)
    if branch.shape != x.shape or x.shape[-1] != len(layer.alpha):
        raise BenchmarkError(
            f"the weights of a residual do not fit inputs {tuple(x.shape)} and its branch {tuple(branch.shape)}; the "
            "certificate is refused"
        )
    return WeightedResidualBound(exact_layer_bound(layer.body, x), layer.alpha, x, branch)
