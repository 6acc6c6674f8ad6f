"""The `LayerBound` of dot-product attention, with or without the residual; costly constants are computed on first use."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch

from benchmark.certificates.bounds.attention_quick import QuickAttention
from benchmark.certificates.bounds.layer_bound import LayerBound, PerturbationSet
from benchmark.certificates.bounds.rounding import AttentionRounding
from benchmark.certificates.bounds.sensitivity import AttentionSensitivity, attention_sensitivity
from benchmark.certificates.bounds.spectral import FORMED_SIDE
from benchmark.layers.attention import ResidualAttention, SelfAttention


class AttentionBound(LayerBound):
    """Scores of another scale than 1 / sqrt(d_head) are those of queries scaled. Of the biases only that of the queries
    moves anything but a constant (sensitivity.py); all of them count for rounding.
    """

    def __init__(self, layer: ResidualAttention | SelfAttention, x: torch.Tensor) -> None:
        self.layer, self.x = layer, x
        self.residual = isinstance(layer, ResidualAttention)
        self.factor = 1.0 if isinstance(layer, ResidualAttention) else layer.factor

    @property
    def has_jvp(self) -> bool:  # type: ignore[override]
        """Whether DF(X) is small enough to form. Beyond, only the quick bound is used."""
        return self.x.shape[1] * self.x.shape[2] <= FORMED_SIDE

    @cached_property
    def _weights(self) -> tuple[torch.Tensor, ...]:
        query, *others = self.layer.head_weights()
        return query * self.factor, *others

    @cached_property
    def _query_bias(self) -> torch.Tensor | None:
        bias = self.layer.query.bias
        return None if bias is None else bias.unflatten(0, (self.layer.heads, -1)) * self.factor

    @cached_property
    def sensitivity(self) -> AttentionSensitivity:
        return attention_sensitivity(
            self.x, *self._weights, residual=self.residual, query_bias=self._query_bias, exact_zeta=False
        )

    @cached_property
    def _quick(self) -> QuickAttention:
        return QuickAttention(self.x, *self._weights, residual=self.residual, query_bias=self._query_bias)

    @cached_property
    def _rounding(self) -> AttentionRounding:  # type: ignore[override]
        layer = self.layer
        inputs = (layer.query, layer.key, layer.value)
        return AttentionRounding(self.x, inputs, layer.output, layer.heads, factor=self.factor, residual=self.residual)

    @property
    def jacobian_norm(self) -> torch.Tensor:  # type: ignore[override]
        return self.sensitivity.linear.jacobian

    def quick_bound(self, delta: torch.Tensor) -> torch.Tensor:
        return self._quick.bound(delta)

    def bound(self, delta: torch.Tensor) -> torch.Tensor:
        quick = self._quick.bound(delta)
        return torch.minimum(where_finite(self.sensitivity.bound, delta), quick) if self.has_jvp else quick

    def remainder(self, perturbation: PerturbationSet) -> torch.Tensor:
        return where_finite(self.sensitivity.remainder, perturbation.delta)

    def reuse(self, earlier: LayerBound, rows: torch.Tensor) -> None:
        assert isinstance(earlier, AttentionBound)
        if "sensitivity" in vars(earlier):
            self.sensitivity = earlier.sensitivity.take(rows)

    def jvp(self, columns: torch.Tensor) -> torch.Tensor:
        flat = columns.flatten(2).permute(1, 2, 0)
        return (self.sensitivity.linear.derivative @ flat).permute(2, 0, 1).reshape(columns.shape)


def where_finite(bound: Callable[[torch.Tensor], torch.Tensor], delta: torch.Tensor) -> torch.Tensor:
    finite = torch.isfinite(delta)
    return torch.where(finite, bound(torch.where(finite, delta, 0.0)), torch.inf)
