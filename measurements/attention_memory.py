"""Peak memory and time of the attention bound at 65 tokens of width 384, for batches of one and two.

    python measurements/attention_memory.py

Each batch in a process of its own, one thread. The Jacobian (24,960 square) is not formed: its norm is bounded through
products, with a stated failure probability.
"""

from __future__ import annotations

import math
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmark.certificates.bounds.sensitivity import attention_sensitivity

TOKENS, WIDTH, HEADS, RADIUS = 65, 384, 6, 0.1


def main() -> None:
    if len(sys.argv) > 1:
        return one(int(sys.argv[1]))
    print(f"{platform.machine()}, {os.cpu_count()} cores, one thread; {HEADS} heads, radius {RADIUS}\n")
    print("| batch | peak GiB | of it before | seconds | tight | paper | failure probability |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for batch in (1, 2):
        subprocess.run([sys.executable, __file__, str(batch)], check=True)
    return None


def one(batch: int) -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    inner = WIDTH // HEADS
    weights = [draw(HEADS, WIDTH, inner) / math.sqrt(WIDTH) for _ in range(3)]
    weights.append(draw(HEADS, inner, WIDTH) / math.sqrt(WIDTH))
    x = draw(batch, TOKENS, WIDTH)
    x = x / x.norm(dim=-1, keepdim=True)
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    sensitivity = attention_sensitivity(x, *weights)
    radii = torch.full((batch,), RADIUS, dtype=torch.float64)
    tight, paper = (float(sensitivity.bound(radii, method).max()) for method in ("tight", "paper"))
    seconds, peak = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    numbers = f"{peak / 2**20:.2f} | {before / 2**20:.2f} | {seconds:.0f} | {tight:.4f} | {paper:.4f}"
    print(f"| {batch} | {numbers} | {sensitivity.failure:g} |", flush=True)


if __name__ == "__main__":
    main()
