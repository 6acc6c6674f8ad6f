"""Where a row's time goes: operations of a forward pass and of one there and back, with untrained weights on random images.

    python measurements/forward_profile.py <track> <row> [--batch N] [--portable]

One thread; each operation's own time, its share of the whole, and calls a pass. The network is the row's own, as it is built
for training, with the weights that layers derive cached as an evaluation has them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]
if "--portable" in sys.argv:  # has to come before torch
    from benchmark.runtime import arithmetic

    arithmetic.fix("portable")

import torch
from torch.profiler import ProfilerActivity, profile

from benchmark.layers.derived import cache_weights
from benchmark.loading import methods
from benchmark.loading.rows import load_row
from benchmark.runtime import errors
from benchmark.runtime.torch_setup import set_up, stop_filling

PASSES, SHOWN = 10, 14


def table(title: str, run: Callable[[], None], batch: int) -> None:
    for _ in range(3):
        run()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for _ in range(PASSES):
            run()
    found = sorted(seen.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in found)
    print(f"\n{title}: {total / PASSES / batch:.0f} microseconds an image\n")
    print("| operation | share | calls a pass |\n|---|---|---|")
    for event in found[:SHOWN]:
        print(f"| {event.key} | {event.self_cpu_time_total / total:.1%} | {event.count / PASSES:g} |")


def main() -> None:
    parser = argparse.ArgumentParser(description="Operations of a row's forward pass.")
    parser.add_argument("track")
    parser.add_argument("row")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--portable", action="store_true")
    asked = parser.parse_args()
    set_up("cpu")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    row = load_row(asked.track, asked.row)
    model = methods.build_model(row.submission, row.settings, row.track).eval().requires_grad_(False)
    cache_weights(model)
    stop_filling()
    images = torch.rand(asked.batch, *row.track.data.shape)

    def forward() -> None:
        with torch.no_grad():
            model(images)

    def back() -> None:
        leaf = images.clone().requires_grad_()
        torch.autograd.grad(model(leaf).sum(), leaf)

    print(f"{asked.row} on {asked.track}, batches of {asked.batch}, torch {torch.__version__}, one thread")
    table("forward", forward, asked.batch)
    table("forward and gradient", back, asked.batch)


if __name__ == "__main__":
    errors.run(main)
