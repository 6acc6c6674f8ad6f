"""Maximum singular value penalisation of attention (Hu et al. 2024, "SpecFormer", equations 5 and 6, algorithm 1).

The sum over layers and heads of lambda_q sigma(W_Q,h)^2 + lambda_k sigma(W_K,h)^2 + lambda_v sigma(W_V,h)^2, and here
also lambda_o sigma(W_O,h)^2. Each sigma is u^T W v with vectors that are kept from step to step and moved by one power
step, v = W^T u / |W^T u|, u = W v / |W v|. With u and v held fixed its square has the gradient 2 sigma u v^T, that of
sigma^2 itself where they are singular vectors. Algorithm 1 as printed does not normalise: its value grows with the fourth
power of W. What a power step gives lies *below* the norm: a penalty, never a bound.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmark.layers.attention_weights import ROLES, AttentionWeights
from benchmark.runtime.errors import BenchmarkError
from benchmark.training.penalty import Attention, Penalty, checked_lambda

HEADS = ("rows", "columns")


def penalty(
    model: nn.Module,
    attention: Attention,
    *,
    lambda_q: float = 0.0,
    lambda_k: float = 0.0,
    lambda_v: float = 0.0,
    lambda_o: float = 0.0,
    heads: str = "rows",
) -> Penalty:
    """
    Args:
        lambda_q, lambda_k, lambda_v, lambda_o: factors of queries', keys', values' and the projection's squared norms.
        heads: "rows", each head's own matrix; or "columns", what the released code cuts: heads' shares of the *input*
            channels of all heads' weight together, an ablation.

    Raises:
        BenchmarkError: a factor that is negative or not finite, a factor for a role that a layer lacks, or no such `heads`.
    """
    given = (("lambda_q", lambda_q), ("lambda_k", lambda_k), ("lambda_v", lambda_v), ("lambda_o", lambda_o))
    factors = {role: checked_lambda(name, value) for role, (name, value) in zip(ROLES, given, strict=True)}
    if heads not in HEADS:
        raise BenchmarkError(f"heads {heads!r} should be one of {', '.join(HEADS)}")
    layers = attention()
    for layer in layers:
        for role, (name, _) in zip(ROLES, given, strict=True):
            if factors[role] and layer.role(role) is None:
                raise BenchmarkError(f"{layer.name} has no {role} weight of its own; leave {name} out")
    return MSVP(attention, {role: factor for role, factor in factors.items() if factor}, heads)


class MSVP(Penalty):
    def __init__(self, attention: Attention, factors: dict[str, float], heads: str) -> None:
        super().__init__()
        self._attention, self.factors, self.heads = attention, factors, heads
        generator = torch.Generator().manual_seed(0)
        for index, layer in enumerate(attention()):
            for role in factors:
                weight = self._matrices(layer, role)
                start = torch.randn(weight.shape[:2], generator=generator)
                self.register_buffer(f"{role}_{index}", nn.functional.normalize(start, dim=1))

    def _matrices(self, layer: AttentionWeights, role: str) -> Tensor:
        """(heads, rows, columns) float32."""
        weight = layer.role(role)
        assert weight is not None  # looked at when the penalty was made
        if self.heads == "columns" and role != "output":
            together = weight.transpose(0, 1).flatten(1)  # (width, heads * inner), acting on rows
            weight = together.unflatten(0, (len(weight), -1))
        return weight.float()

    def forward(self) -> Tensor:
        total: Tensor | None = None
        for index, layer in enumerate(self._attention()):
            for role, factor in self.factors.items():
                weight, u = self._matrices(layer, role), self.get_buffer(f"{role}_{index}")
                with torch.no_grad():
                    v = _unit(torch.einsum("hrc,hr->hc", weight, u))
                term = factor * torch.einsum("hr,hrc,hc->h", u, weight, v).square().sum()
                total = term if total is None else total + term
        return torch.zeros(()) if total is None else total

    @torch.no_grad()
    def advance(self) -> None:
        for index, layer in enumerate(self._attention()):
            for role in self.factors:
                weight, u = self._matrices(layer, role), self.get_buffer(f"{role}_{index}")
                v = _unit(torch.einsum("hrc,hr->hc", weight, u))
                u.copy_(_unit(torch.einsum("hrc,hc->hr", weight, v)))


def _unit(vectors: Tensor) -> Tensor:
    return nn.functional.normalize(vectors, dim=-1)
