"""How tight the attention bounds are: the shape of Havens et al. 2024, table 3, and fixed settings for comparison.

    python measurements/attention_tightness.py

One residual multi-head layer per setting, inputs of fixed token norm, mean over 4 inputs. PGD is gradient ascent, a lower
bound. SpecFormer's is its Theorem 4.3, a local Lipschitz bound for one head, summed over heads with W_O and the residual.
"""

from __future__ import annotations

import math
import os
import platform
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests/support")]

from tiny_models import Weights, steepest

from benchmark.certificates.bounds.sensitivity import attention_sensitivity

# tokens, width, heads, token norm, norm of W_Q and W_K, norm of W_V and W_O (None: random, entries of deviation d^-1/2)
SETTINGS = (
    (5, 16, 4, 4.0, None, None, (0.02,)),
    (5, 16, 4, 4.0, 3.0, 1.0, (0.02,)),
    (4, 128, 8, 1.0, 4.0, 0.75, (0.1,)),
    (65, 64, 4, 3.0, None, None, (0.1,)),
    (4, 128, 8, 1.0, None, None, (0.01, 0.03, 0.05, 0.07, 0.09, 0.1)),  # table 3
)


def main() -> None:
    torch.set_num_threads(1)
    print(f"{platform.machine()}, {os.cpu_count()} cores, one thread; mean of 4 inputs, one random layer a setting\n")
    print("| tokens, width, heads, token norm, norms of W_Q, W_V | radius | PGD | tight | paper | naive | SpecFormer |")
    print("|---|---|---|---|---|---|---|")
    for tokens, width, heads, size, qk, vo, radii in SETTINGS:
        x, weights = layer(tokens, width, heads, size, qk, vo)
        for radius in radii:
            pgd = steepest(x, weights, radius, steps=200, starts=3).mean()
            at, found = torch.full((len(x),), radius, dtype=torch.float64), attention_sensitivity(x, *weights)
            bounds = [found.bound(at, method).mean() for method in ("tight", "paper", "naive")]
            numbers = " | ".join(
                f"{float(b):.4f}" if b < 100 else f"{float(b):.4g}"
                for b in (pgd, *bounds, specformer(x, weights, radius).mean())
            )
            print(f"| {tokens}, {width}, {heads}, {size:g}, {qk or 'random'}, {vo or 'random'} | {radius:g} | {numbers} |")


def layer(
    tokens: int, width: int, heads: int, size: float, qk: float | None, vo: float | None
) -> tuple[torch.Tensor, Weights]:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def square(norm: float | None) -> torch.Tensor:
        weight = draw(width, width) / math.sqrt(width)
        return weight if norm is None else weight / torch.linalg.matrix_norm(weight, ord=2) * norm

    x = draw(4, tokens, width)
    query, key, value, output = square(qk), square(qk), square(vo), square(vo)
    by_head = [w.unflatten(1, (heads, -1)).transpose(0, 1) for w in (query, key, value)]
    return x / x.norm(dim=-1, keepdim=True) * size, (*by_head, output.unflatten(0, (heads, -1)))


def specformer(x: torch.Tensor, weights: Weights, radius: float) -> torch.Tensor:
    """radius (1 + sum_h N (N + 1) (||X||_F + radius)^2 ||W_V W_O|| (||W_Q|| ||W_K|| + 1)): Hu et al. 2024, eq. (9)."""
    w_q, w_k, w_v, w_o = weights
    n, reach = x.shape[1], (x.flatten(1).norm(dim=1) + radius) ** 2
    scores = torch.linalg.matrix_norm(w_q, ord=2) * torch.linalg.matrix_norm(w_k, ord=2) + 1
    values = torch.linalg.matrix_norm(w_v @ w_o, ord=2)
    return radius * (1 + n * (n + 1) * reach * (values * scores).sum())


if __name__ == "__main__":
    main()
