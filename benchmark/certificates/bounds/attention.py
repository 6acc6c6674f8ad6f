"""The `Step` of residual dot-product attention; what is dear is computed when first asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch

from benchmark.certificates.bounds.attention_quick import QuickAttention
from benchmark.certificates.bounds.layer_bound import Reach, Step
from benchmark.certificates.bounds.rounding import AttentionRounding
from benchmark.certificates.bounds.sensitivity import AttentionSensitivity, attention_sensitivity
from benchmark.certificates.bounds.spectral import FORMED_SIDE
from benchmark.layers.attention import ResidualAttention
from benchmark.runtime.errors import BenchmarkError


class AttentionStep(Step):
    def __init__(self, layer: ResidualAttention, x: torch.Tensor) -> None:
        self.layer, self.x = layer, x

    @property
    def pushes(self) -> bool:  # type: ignore[override]
        """Else DF(X) is too large to form, its norm rests on random probes, and the quick bound alone counts."""
        return self.x.shape[1] * self.x.shape[2] <= FORMED_SIDE

    @cached_property
    def sensitivity(self) -> AttentionSensitivity:
        return attention_sensitivity(self.x, *self.layer.head_weights(), exact_zeta=False)

    @cached_property
    def _quick(self) -> QuickAttention:
        return QuickAttention(self.x, *self.layer.head_weights())

    @cached_property
    def _float32(self) -> AttentionRounding:
        layer = self.layer
        inputs = [linear.weight.mT for linear in (layer.query, layer.key, layer.value)]
        return AttentionRounding(self.x, inputs, layer.output.weight.mT, layer.heads)

    @property
    def gain(self) -> torch.Tensor:  # type: ignore[override]
        return self.sensitivity.linear.jacobian

    def quick_bound(self, delta: torch.Tensor) -> torch.Tensor:
        return self._quick.bound(delta)

    def bound(self, delta: torch.Tensor) -> torch.Tensor:
        quick = self._quick.bound(delta)
        return torch.minimum(where_finite(self.sensitivity.bound, delta), quick) if self.pushes else quick

    def remainder(self, reach: Reach) -> torch.Tensor:
        return where_finite(self.sensitivity.remainder, reach.delta)

    def rounding(self, delta: torch.Tensor) -> torch.Tensor:
        return self._float32(delta)

    def take_over(self, earlier: Step, rows: torch.Tensor) -> None:
        assert isinstance(earlier, AttentionStep)
        if "sensitivity" in vars(earlier):
            self.sensitivity = earlier.sensitivity.take(rows)

    def push(self, columns: torch.Tensor) -> torch.Tensor:
        derivative = self.sensitivity.linear.derivative
        if derivative is None:
            raise BenchmarkError("attention this wide (tokens * width > 8192) has no formed Jacobian to carry on")
        flat = columns.flatten(2).permute(1, 2, 0)
        return (derivative @ flat).permute(2, 0, 1).reshape(columns.shape)


def where_finite(bound: Callable[[torch.Tensor], torch.Tensor], delta: torch.Tensor) -> torch.Tensor:
    finite = torch.isfinite(delta)
    return torch.where(finite, bound(torch.where(finite, delta, 0.0)), torch.inf)
