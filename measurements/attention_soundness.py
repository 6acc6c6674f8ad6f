"""Tries to break the attention bounds: adversarial trials over randomly drawn layers, and how tight the bounds are.

    python measurements/attention_soundness.py 1000000

A trial is one (layer, input, radius) attacked by gradient ascent. Layers have 1 to 8 heads, 2 to 65 tokens (most of them
few), weight scales 0.1 to 10, inputs of scale 0.1 to 1000, radii 1e-3 to 1, with and without residual and query bias; a
fifth of them are extreme on purpose (uniform or nearly one-hot attention, repeated tokens, zero weights). Prints the number
of violations, the worst ratio of what ascent found to each bound, and the median ratio of each bound to what ascent found.
"""

from __future__ import annotations

import math
import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests/support")]

from tiny_models import attention_case, steepest

from benchmark.certificates.bounds.attention import QuickAttention
from benchmark.certificates.bounds.sensitivity import METHODS, attention_sensitivity

RADII = 4  # for each layer and input
BOUNDS = (*METHODS, "quick")


def main() -> None:
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    torch.set_num_threads(1)
    started, ratios = time.perf_counter(), {name: [] for name in BOUNDS}
    trials = violations = layers = 0
    worst = dict.fromkeys(BOUNDS, 0.0)
    for found, bounds in cases():
        layers, trials = layers + 1, trials + len(found)
        for name, bound in bounds.items():
            share = torch.where(found > 0, found / bound.clamp(min=1e-300), 0.0)
            violations += int((share > 1 + 1e-9).sum())  # ascent itself rounds
            worst[name] = max(worst[name], float(share.max()))
            ratios[name].append((bound / found.clamp(min=1e-300))[(found > 0) & bound.isfinite()][::16])
        if layers % 500 == 0:
            print(f"{trials} of {wanted} trials, {violations} violations", file=sys.stderr, flush=True)
        if trials >= wanted:
            break
    seconds = time.perf_counter() - started
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, one thread; {trials} trials over {layers} layers in {seconds:.0f} s"
    )
    print(f"violations: {violations}\n")
    print("| bound | worst ascent / bound | median bound / ascent |")
    print("|---|---|---|")
    for name in BOUNDS:
        print(f"| {name} | {worst[name]:.6f} | {torch.cat(ratios[name]).median():.3f} |")


def cases(first: int = 0) -> Iterator[tuple[torch.Tensor, dict[str, torch.Tensor]]]:
    """Endlessly: what ascent found and each bound, (trials,) each, for one random layer."""
    seed = first
    while True:
        yield one_layer(seed)
        seed += 1


def one_layer(seed: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator))

    heads = 1 + int(8 * uniform(0, 1) ** 2)
    tokens = 2 + int(64 * uniform(0, 1) ** 8)
    inner, batch = 1 + int(uniform(0, 3)), max(2, min(64, 2048 // (tokens**2 * heads)))
    x, weights = attention_case(
        seed, 10 ** uniform(-1, 1), 10 ** uniform(-1, 3), heads=heads, n=tokens, d=heads * inner, batch=batch
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
    residual = uniform(0, 1) < 0.5
    sensitivity = attention_sensitivity(x, *weights, residual=residual, query_bias=bias)
    quick = QuickAttention(x, *weights) if residual and bias is None else None
    noise = 64 * 2.0**-53 * x.abs().amax((1, 2)) * math.sqrt(x[0].numel())  # what rounding alone can move the output by
    found, bounds = [], {name: [] for name in BOUNDS}
    for _ in range(RADII):
        radius = 10 ** uniform(-3, 0)
        radii = torch.full((batch,), radius, dtype=torch.float64)
        ascent = steepest(x, weights, radius, residual, bias, steps=int(uniform(5, 12)), starts=1)
        found.append((ascent - noise).clamp(min=0))
        for method in METHODS:
            bounds[method].append(sensitivity.bound(radii, method))
        bounds["quick"].append(quick.bound(radii) if quick else torch.full_like(radii, torch.inf))
    return torch.cat(found), {name: torch.cat(parts) for name, parts in bounds.items()}


if __name__ == "__main__":
    main()
