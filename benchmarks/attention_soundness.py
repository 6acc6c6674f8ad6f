"""Tries to break the attention bounds: adversarial trials over randomly drawn layers, and how tight the bounds are.

    python benchmarks/attention_soundness.py 100000

A trial is one (layer, input, radius) attacked by gradient ascent. Layers have 1 to 8 heads, 2 to 17 tokens, weight scales
0.1 to 10, inputs of scale 0.1 to 1000, radii 1e-3 to 1, with and without residual and query bias; a fifth of them are
extreme on purpose (uniform or nearly one-hot attention, repeated tokens, zero weights). Prints the number of violations, the
worst ratio of what ascent found to each bound, and the median ratio of each bound to what ascent found.
"""

from __future__ import annotations

import math
import os
import platform
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from tiny_attention import attention_case, steepest  # noqa: E402

from benchmark.certificates.lofast import METHODS, attention_sensitivity  # noqa: E402

BATCH = 32


def main() -> None:
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    torch.set_num_threads(1)
    started, trials, violations = time.perf_counter(), 0, 0
    worst, ratios = dict.fromkeys(METHODS, 0.0), {method: [] for method in METHODS}
    seed = 0
    while trials < wanted:
        found, bounds = one_layer(seed)
        seed += 1
        trials += len(found)
        if seed % 100 == 0:
            print(f"{trials} of {wanted} trials, {violations} violations", file=sys.stderr, flush=True)
        for method, bound in bounds.items():
            share = torch.where(found > 0, found / bound.clamp(min=1e-300), 0.0)
            violations += int((share > 1 + 1e-9).sum())  # ascent itself rounds
            worst[method] = max(worst[method], float(share.max()))
            ratios[method].append((bound / found.clamp(min=1e-300))[found > 0])
    seconds = time.perf_counter() - started
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, one thread; {trials} trials over {seed} layers in {seconds:.0f} s"
    )
    print(f"violations: {violations}")
    print("| bound | worst ascent / bound | median bound / ascent |")
    print("|---|---|---|")
    for method in METHODS:
        print(f"| {method} | {worst[method]:.6f} | {torch.cat(ratios[method]).median():.3f} |")


def one_layer(seed: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """What ascent found and each bound, for a batch of inputs of one random layer: (batch,) each."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator))

    heads = int(uniform(1, 9))
    tokens = 2 + int(15 * uniform(0, 1) ** 2)
    inner = 1 + int(uniform(0, 3))
    x, weights = attention_case(
        seed, 10 ** uniform(-1, 1), 10 ** uniform(-1, 3), heads=heads, n=tokens, d=heads * inner, batch=BATCH
    )
    extreme = int(uniform(0, 20))
    if extreme == 0:
        weights = (weights[0] * 0, *weights[1:])
    elif extreme == 1:
        weights = (weights[0] * 30, weights[1] * 30, *weights[2:])
    elif extreme == 2:
        x = x[:, :1].expand_as(x).clone()
    elif extreme == 3:
        weights = (*weights[:2], weights[2] * 0, weights[3])
    bias = torch.randn(heads, inner, generator=generator, dtype=torch.float64) if uniform(0, 1) < 0.3 else None
    residual, radius = uniform(0, 1) < 0.5, 10 ** uniform(-3, 0)
    sensitivity = attention_sensitivity(x, *weights, residual=residual, query_bias=bias)
    radii = torch.full((BATCH,), radius, dtype=torch.float64)
    found = steepest(x, weights, radius, residual, bias, steps=int(uniform(5, 25)), starts=1)
    noise = 64 * 2.0**-53 * x.abs().amax((1, 2)) * math.sqrt(x[0].numel())  # what rounding alone can move the output by
    return (found - noise).clamp(min=0), {method: sensitivity.bound(radii, method) for method in METHODS}


if __name__ == "__main__":
    main()
