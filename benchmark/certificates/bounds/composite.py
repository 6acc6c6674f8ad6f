"""Steps of layers made of layers: nn.Sequential inside a residual, and the residual."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from benchmark.certificates.bounds.dispatch import exact_step, step
from benchmark.certificates.bounds.layer_bound import UP, Reach, Step
from benchmark.certificates.bounds.rounding import FLOAT64, TINY, UNIT32, size
from benchmark.certificates.bounds.spectral import spectral_norm_upper
from benchmark.layers.residual import Residual
from benchmark.runtime.errors import BenchmarkError


@dataclass(frozen=True)
class Pushed:
    """The columns of a reach at the input of each step and at the output, and their norms (n,)."""

    columns: list[torch.Tensor]
    norms: list[torch.Tensor]


class SequentialStep(Step):
    """f_m o ... o f_1. With J_k the nominal Jacobians and R_k what they miss, D_k = J_<k D + e_k, e_1 = 0, and
    e_(k+1) = J_k e_k + R_k(D_k); so the remainder is e_(m+1) = sum_k J_>k R_k(D_k), which takes from a margin along a what
    R_k(D_k) takes along J_>k^T a. The roundings of the parts are counted among the R_k: bound, remainder and along speak of
    the sequence as float32 runs it, and `rounding` adds nothing.
    """

    def __init__(self, layers: nn.Sequential, x: torch.Tensor) -> None:
        self.steps: list[Step] = []
        self.layers, self.inputs = list(layers), [x]
        for layer in self.layers:
            self.steps.append(exact_step(layer, self.inputs[-1]))
            self.inputs.append(layer(self.inputs[-1]))
        self._met: tuple[torch.Tensor, Pushed] | None = None

    @cached_property
    def gain(self) -> torch.Tensor:  # type: ignore[override]
        total = self.inputs[0].new_ones(len(self.inputs[0]))
        for part in self.steps:
            total = total * part.gain * UP
        return total

    def bound(self, delta: torch.Tensor) -> torch.Tensor:
        for part in self.steps:
            delta = (part.bound(delta) + part.runs(delta)) * UP
        return delta

    def quick_bound(self, delta: torch.Tensor) -> torch.Tensor:
        for part in self.steps:
            delta = (part.quick_bound(delta) + part.runs(delta)) * UP
        return delta

    def rounding(self, delta: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(delta)

    def push(self, columns: torch.Tensor) -> torch.Tensor:
        for part in self.steps:
            columns = part.push(columns)
        return columns

    def _pushed(self, columns: torch.Tensor) -> Pushed:
        if self._met is None or self._met[0] is not columns:  # the same for all radii of a search
            every = [columns]
            for part in self.steps:
                every.append(part.push(every[-1]))
            norms = [spectral_norm_upper(now.flatten(2).permute(1, 2, 0)) for now in every]
            self._met = (columns, Pushed(every, norms))
        return self._met[1]

    def _reaches(self, reach: Reach) -> tuple[list[Reach], torch.Tensor]:
        """The reach at each step, and the norm of e_(m+1)."""
        pushed, found, missed = self._pushed(reach.columns), [reach], torch.zeros_like(reach.delta)
        for index, part in enumerate(self.steps):
            now = found[-1]
            rounding = part.runs(now.delta)
            left = part.remainder(now) + rounding
            missed = (part.gain * missed + left) * UP
            rho = (part.gain * now.rho + left) * UP
            delta = (
                torch.minimum(part.bound(now.delta) + rounding, pushed.norms[index + 1] * now.radius * UP + rho) * UP
            )
            found.append(Reach(pushed.columns[index + 1], now.radius, rho, delta))
        return found[:-1], missed

    def remainder(self, reach: Reach) -> torch.Tensor:
        missed = self._reaches(reach)[1]
        return torch.minimum(missed, self.bound(reach.delta) + self.gain * reach.delta) * UP

    def along(self, a: torch.Tensor, reach: Reach) -> torch.Tensor:
        reaches, _ = self._reaches(reach)
        taken = torch.zeros_like(a.flatten(2)[:, :, 0])
        for index in range(len(self.steps) - 1, -1, -1):
            part, now = self.steps[index], reaches[index]
            rounding = torch.linalg.vector_norm(a.flatten(2), dim=2) * part.runs(now.delta)[:, None]
            taken = taken + part.along(a, now) + rounding
            a = self._pull(index, a)
        return taken * UP

    def _pull(self, index: int, a: torch.Tensor) -> torch.Tensor:
        """J^T a of one layer: (n, rivals, *output) to (n, rivals, *input)."""
        with torch.enable_grad():
            x = self.inputs[index].detach().requires_grad_()
            y = self.layers[index](x)
            parts = [torch.autograd.grad(y, x, part, retain_graph=True)[0] for part in a.unbind(1)]
        return torch.stack(parts, dim=1)


class ResidualStep(Step):
    """x + body(x): the identity adds nothing to the body's remainder; the sum is rounded once more."""

    def __init__(self, body: Step, x: torch.Tensor, branch: torch.Tensor) -> None:
        self.body, self.size = body, size(x) + size(branch)

    @property
    def gain(self) -> torch.Tensor:  # type: ignore[override]
        return (1 + torch.as_tensor(self.body.gain, dtype=torch.float64)) * UP

    def quick_bound(self, delta: torch.Tensor) -> torch.Tensor:
        return (delta + self.body.quick_bound(delta)) * UP

    def rounding(self, delta: torch.Tensor) -> torch.Tensor:
        inside = self.body.rounding(delta)
        return (inside + UNIT32 * (self.size + delta + self.body.quick_bound(delta) + inside)) * FLOAT64 + TINY

    def bound(self, delta: torch.Tensor) -> torch.Tensor:
        return (delta + self.body.bound(delta)) * UP

    def push(self, columns: torch.Tensor) -> torch.Tensor:
        return columns + self.body.push(columns)

    def remainder(self, reach: Reach) -> torch.Tensor:
        return self.body.remainder(reach)

    def along(self, a: torch.Tensor, reach: Reach) -> torch.Tensor:
        return self.body.along(a, reach)


@step.register
def _(layer: nn.Sequential, x: torch.Tensor) -> Step:
    if not len(layer):
        raise BenchmarkError("an empty nn.Sequential has no bound; use nn.Identity")
    return SequentialStep(layer, x)


@step.register
def _(layer: Residual, x: torch.Tensor) -> Step:
    branch = layer.body(x)
    if branch.shape != x.shape:
        raise BenchmarkError(f"the body of a residual changes the shape {tuple(x.shape)}; the certificate is refused")
    return ResidualStep(exact_step(layer.body, x), x, branch)
