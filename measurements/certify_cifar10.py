"""Seconds an image of the published bound, this project's, CROWN, and the two in turn (Tables 1 and 2 of Havens et al. 2024).

    python measurements/certify_cifar10.py [images] [of them by CROWN] > measurements/measured/certify_cifar10.md

Takes the networks of the study `table1_cifar10` (run `rvb study Havens2024LoFAST table1_cifar10` first) and trains nothing.
Image by image, each radius by itself, of the first test images that the network gets right: those that it gets wrong cost
one forward pass. Seconds of one thread of the processor, which other work leaves alone, medians over images; the network's
reading by auto_LiRPA, once a network, stands apart. LoFAST, then CROWN takes LoFAST's seconds, and CROWN's where LoFAST does
not certify: a mean over the images that CROWN was asked about, as a median would be that of one of the two. The last column
counts among images that are right, so it is no certified accuracy; that stands in the study.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from benchmark.loading import methods

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmark.certificates import crown, local, published
from benchmark.loading.rows import Row
from benchmark.loading.trained import evaluation_images
from benchmark.runtime.errors import BenchmarkError, run
from benchmark.runtime.torch_setup import set_up
from benchmark.studies import grids

RADII = (0.02, 0.05, 0.1)


def main() -> None:
    os.chdir(ROOT)
    device, grid = set_up("cpu"), grids.load("Havens2024LoFAST", "table1_cifar10")
    count, dear = [int(word) for word in sys.argv[1:]] + [50, 3][len(sys.argv) - 1 :]
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, one thread, processor time; auto_LiRPA "
        f"{importlib.import_module('auto_LiRPA').__version__}, torch {torch.__version__}; the first {count} images that are "
        f"right, of them {dear} by CROWN\n"
    )
    print("| layers | radius | method | images | seconds an image | certified of them |\n|---|---|---|---|---|---|")
    for number, (cell, settings) in enumerate(grid.cells.items()):
        row = Row(grid.track, grid.submission, grid.study.variant, settings)
        weights = grid.folder / "weights" / f"{number}-0.safetensors"
        if not weights.exists():
            raise BenchmarkError(f"{weights} is missing; run `rvb study Havens2024LoFAST table1_cifar10`")
        model = methods.build_model(grid.submission, settings, grid.track)
        model.load_state_dict(load_file(weights))
        model = model.eval().requires_grad_(False)
        images, labels = evaluation_images(row, device)
        correct = (model(images).argmax(1) == labels).nonzero()[:count, 0]
        if len(correct) < max(count, dear):
            raise BenchmarkError(f"{cell}: {len(correct)} images are right, fewer than asked for; ask for fewer")
        network(model, images[correct], labels[correct], int(settings.model["depth"]), dear)


def network(model: nn.Sequential, images: torch.Tensor, labels: torch.Tensor, depth: int, dear: int) -> None:
    """Prints the rows of one network."""
    started = time.process_time()
    bounds = crown.Bounds(model, images, 0)
    print(f"| {depth} | | CROWN, reading the network | | {time.process_time() - started:.2f} | |", flush=True)
    one = [(images[i : i + 1], labels[i : i + 1]) for i in range(len(labels))]
    for radius in RADII:
        lofast = [timed(lofast_at, model, x, y, radius) for x, y in one]
        ours = [timed(local.certified_at, model, x, y, radius) for x, y in one]
        by_crown = [timed(bounds.holds, x, y, radius) for x, y in one[:dear]]
        in_turn = [(a or b, s + t * (not a)) for (a, s), (b, t) in zip(lofast, by_crown, strict=False)]
        for name, found in (("LoFAST", lofast), ("this project's", ours), ("CROWN", by_crown)):
            say(depth, radius, name, found, statistics.median)
        say(depth, radius, "LoFAST, then CROWN", in_turn, statistics.mean)


def say(depth: int, radius: float, name: str, found: list[tuple[bool, float]], middle: Callable) -> None:
    seconds, held = middle([s for _, s in found]), sum(h for h, _ in found)
    print(f"| {depth} | {radius} | {name} | {len(found)} | {seconds:.3f} | {held} |", flush=True)


def timed(certified: Callable, *arguments: object) -> tuple[bool, float]:
    """The verdict and the processor's seconds."""
    started = time.process_time()
    with contextlib.redirect_stdout(sys.stderr):  # auto_LiRPA prints what overflows
        held = bool(certified(*arguments))
    return held, time.process_time() - started


def lofast_at(model: nn.Sequential, image: torch.Tensor, label: torch.Tensor, radius: float) -> bool:
    """The verdict of the published bound on one image that is right."""
    network = published.checked_copy(model)
    bound = published.Published(network, published.bound_network(network, image, label))
    return bool((bound.bounded.rival_margins > bound.margin_drop(torch.full((1,), radius, dtype=torch.float64))).all())


if __name__ == "__main__":
    run(main)
