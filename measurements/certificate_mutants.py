"""Tries to break certificates by changing networks: random mutations, each accepted certificate attacked at its radius.

    python measurements/certificate_mutants.py 10000 [first seed]

A trial (tests/support/mutations.py) is one seed: a small network of one of 14 kinds, its margins wide or narrow,
with the certificate local, published, lipschitz or box_lipschitz, and one to three mutations of it
(tests/support/mutations.py: attributes, weights including NaN, infinity, huge, tiny and denormal ones, number types, hooks,
replaced methods, subclasses, swapped and inserted layers, forged caches). Accepted is a certificate whose `float32_gap` and
`certify` both return; then each certified image is attacked inside its radius by gradient steps, random moves and extremes,
and what counts is the original object's float32 answer. Prints how trials ended; a false certificate, or a refusal that is no
BenchmarkError, prints its seed.
"""

from __future__ import annotations

import os
import platform
import random
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests/support")]

import torch
from mutations import CASES, MUTATIONS, Mutation, trial


def drawn(seed: int) -> tuple[int, list[Mutation]]:
    draw = random.Random(seed)
    count = draw.choice((1, 1, 2, 3))
    mutations = [(draw.choice(sorted(MUTATIONS)), draw.randrange(100), draw.randrange(100)) for _ in range(count)]
    return draw.randrange(CASES), mutations


def main() -> None:
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    started, seen = time.process_time(), Counter[str]()
    for seed in range(first, first + wanted):
        which, mutations = drawn(seed)
        try:
            outcome = trial(which, mutations)
        except Exception as error:
            seen[type(error).__name__] += 1
            print(f"VIOLATION: seed {seed}, {type(error).__name__}: {error}", flush=True)
            continue
        seen[outcome.end] += 1
        seen["images attacked"] += outcome.attacked
    seconds = time.process_time() - started
    machine = f"{platform.machine()}, {os.cpu_count()} cores, one thread"
    print(f"{machine}; seeds {first} to {first + wanted - 1}, {seconds:.0f} core-seconds\n")
    for name, count in seen.most_common():
        print(f"- {name}: {count}")


if __name__ == "__main__":
    main()
