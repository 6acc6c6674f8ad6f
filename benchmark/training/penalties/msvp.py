"""Maximum singular value penalisation of attention (Hu et al. 2024, "SpecFormer", equation 12 and algorithm 1).

The sum over layers and heads of lambda_q sigma(W_Q,h)^2 + lambda_k sigma(W_K,h)^2 + lambda_v sigma(W_V,h)^2, and here also
lambda_o sigma(W_O,h)^2. Each sigma is u^T W v with vectors that are kept from step to step and moved by one power step,
v = W^T u / |W^T u|, u = W v / |W v|. With u and v fixed its square has the gradient 2 sigma u v^T, that of sigma^2 itself for
singular vectors. Algorithm 1 as printed does not normalise: its value grows with the fourth power of W. A power iteration
lies *below* the norm: a penalty, never a bound.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from benchmark.layers.attention_weights import ROLES, AttentionWeights
from benchmark.runtime.errors import BenchmarkError
from benchmark.training.objective import Attention, NotNegative, Penalty, unit


def penalty(
    model: nn.Module,
    attention: Attention,
    *,
    lambda_q: NotNegative = 0.0,
    lambda_k: NotNegative = 0.0,
    lambda_v: NotNegative = 0.0,
    lambda_o: NotNegative = 0.0,
    heads: Literal["rows", "columns"] = "rows",
) -> Penalty:
    """Return the penalty.

    Args:
        lambda_q, lambda_k, lambda_v, lambda_o: factors of queries', keys', values' and the projection's squared norms.
        heads: "rows", each head's matrix; or "columns", as the released code cuts: heads' shares of the *input* channels of
            the weight of all heads together, an ablation.

    Raises:
        BenchmarkError: a factor for a role that a layer lacks.
    """
    pairs = zip(ROLES, (lambda_q, lambda_k, lambda_v, lambda_o), strict=True)
    factors = {role: factor for role, factor in pairs if factor}
    for layer in attention():
        for role in factors:
            if layer.role(role) is None:
                raise BenchmarkError(f"{layer.name} has no {role} weight of its own; leave lambda_{role[0]} out")
    return MSVP(attention, factors, heads)


class MSVP(Penalty):
    """The penalty, with all matrices of one shape in one batch: a step costs few products."""

    def __init__(self, attention: Attention, factors: dict[str, float], heads: str) -> None:
        super().__init__()
        self._attention, self.factors, self.heads = attention, factors, heads
        generator = torch.Generator().manual_seed(0)
        for name, (weights, factors_of_each) in self._batches().items():
            self.register_buffer(f"u_{name}", unit(torch.randn(weights.shape[:2], generator=generator)))
            self.register_buffer(f"factors_{name}", torch.tensor(factors_of_each), persistent=False)

    def _batches(self) -> dict[str, tuple[Tensor, list[float]]]:
        """Return, by shape, all matrices (many, rows, columns) float32 and their factors."""
        by_shape: dict[str, list[tuple[Tensor, float]]] = {}
        for layer in self._attention():
            for role, factor in self.factors.items():
                weight = self._matrices(layer, role)
                by_shape.setdefault(f"{weight.shape[1]}x{weight.shape[2]}", []).append((weight, factor))
        return {
            name: (torch.cat([weight for weight, _ in parts]).float(), [f for weight, f in parts for _ in weight])
            for name, parts in by_shape.items()
        }

    def _matrices(self, layer: AttentionWeights, role: str) -> Tensor:
        """Return the matrices that are penalised: (heads, rows, columns)."""
        weight = layer.role(role)
        assert weight is not None  # checked when the penalty was made
        if self.heads == "columns" and role != "output":
            together = weight.transpose(0, 1).flatten(1)  # (width, heads * inner), acting on rows
            return together.unflatten(0, (len(weight), -1))
        return weight

    def forward(self) -> Tensor:
        total: Tensor | float = 0.0
        for name, (weights, _) in self._batches().items():
            u, factors = self.get_buffer(f"u_{name}"), self.get_buffer(f"factors_{name}")
            left = _columns(weights, u)
            sigma = (left * unit(left.detach())).sum(1)
            total = total + factors @ sigma**2
        return torch.as_tensor(total)

    @torch.no_grad()
    def advance(self) -> None:
        for name, (weights, _) in self._batches().items():
            u = self.get_buffer(f"u_{name}")
            v = unit(_columns(weights, u))
            moved = unit((weights @ v[..., None])[..., 0])
            u.copy_(torch.where(moved.any(1, keepdim=True), moved, u))  # a weight of zeros has no direction


def _columns(weights: Tensor, u: Tensor) -> Tensor:
    """Return W^T u of each: (many, columns)."""
    return (u[:, None] @ weights)[:, 0]
