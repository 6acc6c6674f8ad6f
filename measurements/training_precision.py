"""Processor seconds of a training step of real rows: float32, bfloat16, compiled, and with the channels last.

`python measurements/training_precision.py [rounds] [rows of cifar10_jpeg]`: the row's own network, cross-entropy, AdamW, 128
random images, one thread, native arithmetic (bfloat16 and what torch compiles are not portable). The ways take turns, three
steps each, in one process; medians over the rounds. `bf16` is what `precision: bf16-mixed` in params.yaml does.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch import nn

from benchmark.loading import methods
from benchmark.loading.rows import load_row

ROWS = (
    "Dosovitskiy2021ViT-standard", "Debenedetti2022XCiT-standard", "Wang2022Cauchy-covit", "Gupta2023CertViT-cnn",
    "Havens2024LoFAST-wide_margin",
)  # fmt: skip
STEPS = 3
Step = Callable[[int], None]


def network(name: str) -> nn.Module:
    row = load_row("cifar10_jpeg", name)
    torch.manual_seed(0)
    return methods.build_model(row.submission, row.settings, row.track).train()


def stepping(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, autocast: bool = False) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def steps(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                output = model(images)
            nn.functional.cross_entropy(output.float(), labels).backward()
            optimizer.step()

    return steps


def main(rounds: int, rows: list[str]) -> None:
    torch.set_num_threads(1)
    images, labels = torch.rand(128, 3, 32, 32), torch.randint(10, (128,))
    last = images.to(memory_format=torch.channels_last)
    print(f"torch {torch.__version__}, one thread, {rounds} rounds of {STEPS} steps, ms of the processor a step\n")
    print("| row | float32 | bf16 | compiled | channels last | compiling, s |\n|---|---|---|---|---|---|")
    for name in rows:
        compiled = stepping(cast(nn.Module, torch.compile(network(name))), images, labels)
        start = time.perf_counter()
        compiled(1)
        took = time.perf_counter() - start
        ways = {
            "float32": stepping(network(name), images, labels),
            "bf16": stepping(network(name), images, labels, autocast=True),
            "compiled": compiled,
            "channels last": stepping(network(name).to(memory_format=torch.channels_last), last, labels),
        }
        for steps in ways.values():
            steps(1)
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, steps in ways.items():
                start = time.process_time()
                steps(STEPS)
                seconds[way].append((time.process_time() - start) / STEPS)
        cells = [f"{1000 * statistics.median(values):.1f}" for values in seconds.values()]
        print(f"| {name} | {' | '.join(cells)} | {took:.0f} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7, sys.argv[2:] or [*ROWS])
