"""LipsFormer's scaled cosine similarity attention and CenterNorm, which replaces LayerNorm (Qi et al. 2023)."""

from __future__ import annotations

import math

import torch
from torch import nn

from benchmark.layers.attention import HEADS, AttentionByHeads, divided
from benchmark.layers.kinds import at_least, known, side


@known(**HEADS, eps=at_least(1e-12, "eps"))
class ScaledCosineAttention(AttentionByHeads):
    """concat over heads of nu softmax(tau Q^ K^^T) V^, times W_O, without a residual: (n, tokens, width) to the same.

    Each row y of Q = X W_Q,h, K = X W_K,h and V = X W_V,h is divided by sqrt(|y|^2 + eps), which gives Q^, K^ and V^ with
    rows shorter than 1 (Qi et al. 2023; rows as in Hu et al. 2024, table 4). nu and tau are learned, one number each for
    the layer, of either sign. No biases. The paper's released code is another layer: values are not normalised, there is
    no eps, queries, keys, values and scores have biases, tau is fixed at 10 and nu at 1.

    W_Q, W_K, W_V and W_O start as W / ||W|| with W from nn.Linear (the paper's spectral initialisation).

    Args:
        eps: in the units of |y|^2; the paper gives no value. Rounded to float32 so that every precision runs the same
            function.
        nu, tau: initial values.

    Raises:
        ValueError: the heads do not divide the width, eps outside [1e-12, 1e6], nu or tau not finite.
    """

    def __init__(self, width: int, heads: int, *, eps: float, nu: float = 1.0, tau: float = 1.0) -> None:
        super().__init__()
        self.heads = divided(width, heads)
        if not 1e-12 <= eps <= 1e6:
            raise ValueError(f"eps {eps} should be between 1e-12 and 1e6")
        if not (math.isfinite(nu) and math.isfinite(tau)):
            raise ValueError(f"nu {nu} and tau {tau} should be finite")
        self.eps = float(torch.tensor(eps, dtype=torch.float32, device="cpu"))
        self.nu = nn.Parameter(torch.tensor(float(nu)))
        self.tau = nn.Parameter(torch.tensor(float(tau)))
        self.query, self.key, self.value, self.output = (
            start_at_norm_one(nn.Linear(width, width, bias=False)) for _ in range(4)
        )

    def values(self, x: torch.Tensor) -> torch.Tensor:
        """Return nu V^ by head: (n, heads, tokens, width / heads)."""
        return self.nu * self._rows(self.value(x))

    def mixed(self, x: torch.Tensor) -> torch.Tensor:
        """Return nu softmax(tau Q^ K^^T) V^ by head: (n, heads, tokens, width / heads)."""
        query, key, value = (self._rows(linear(x)) for linear in (self.query, self.key, self.value))
        scores = self.tau * (query @ key.mT)
        return self.nu * (scores.softmax(-1) @ value)

    def _rows(self, y: torch.Tensor) -> torch.Tensor:
        """Return y / sqrt(|y|^2 + eps) of each head's rows: (n, tokens, width) to (n, heads, tokens, width / heads)."""
        y = self.split(y)
        return y / ((y**2).sum(-1, keepdim=True) + self.eps).sqrt()


def start_at_norm_one(linear: nn.Linear) -> nn.Linear:
    """Divide the weight by its norm, in place (Qi et al. 2023, spectral initialisation)."""
    with torch.no_grad():
        linear.weight /= torch.linalg.matrix_norm(linear.weight.double(), ord=2)
    return linear


@known(width=side("gamma", 0))
class CenterNorm(nn.Module):
    """gamma * d / (d - 1) (x - mean of x) + beta, token by token: (..., d) to the same (Qi et al. 2023).

    It is linear up to beta, unlike LayerNorm, which divides by a deviation. Its norm is at most d / (d - 1) max |gamma|,
    since subtracting the mean is a projection.

    Raises:
        ValueError: the width is below 2.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        if width < 2:
            raise ValueError(f"CenterNorm needs a width of 2 or more, not {width}")
        self.gamma = nn.Parameter(torch.ones(width))
        self.beta = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        width = len(self.gamma)
        return self.gamma * (width / (width - 1) * (x - x.mean(-1, keepdim=True))) + self.beta
