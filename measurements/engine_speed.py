"""How fast is the fast AutoAttack engine? Beside the reference and robustbench, on the digits track's two ViTs.

    python measurements/engine_speed.py [--models N] [--images N] [--repeats N]

The three run in turn, in this one process, on the same images with one thread, each first in one repeat of three; repeat r is
seed r (`robustbench.eval.benchmark` seeds itself from the clock; it gets all images as one batch, like the engines, where its
default is 32). The models are vit-standard and vit-robust of engine_models.py: the rows Dosovitskiy2021ViT-standard and
Wong2020Fast-linf, byte for byte with the same seed and machine. CPU seconds are the process's; medians.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from unittest import mock

import torch
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "measurements")]

from engine_models import evaluation_images, trained
from robustbench import data as robustbench_data
from robustbench import eval as robustbench_eval
from robustbench.model_zoo.enums import BenchmarkDataset

from benchmark.data.tensors import Split
from benchmark.evaluation.auto_attack import auto_attack
from benchmark.runtime import errors
from benchmark.runtime.torch_setup import set_up
from benchmark.specs.threat import ThreatModel

MODELS = ("vit-robust", "vit-standard")
THREATS = (ThreatModel(norm="Linf", eps=0.15), ThreatModel(norm="L2", eps=0.5))
SIDES = ("fast", "reference", "robustbench")
TARGET = 2.0
Took = tuple[float, float, int]  # CPU seconds, wall seconds, robust images


def attacked(side: str, model: nn.Module, split: Split, threat: ThreatModel, seed: int) -> int:
    """Runs one side; how many images it leaves robust."""
    images, labels = split
    if side == "robustbench":
        return peer(model, images, labels, threat)
    found = auto_attack(model, images, labels, norm=threat.norm, eps=threat.eps, engine=side, seed=seed)
    return int(found.robust.sum())


def peer(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, threat: ThreatModel) -> int:
    """`robustbench.eval.benchmark` itself; its loader of CIFAR-10 hands out these images instead."""
    loaders = {BenchmarkDataset.cifar_10: lambda n, folder, preprocessing: (images[:n], labels[:n])}
    quiet = io.StringIO()
    with (
        mock.patch.dict(robustbench_data._clean_dataset_loaders, loaders),
        contextlib.redirect_stdout(quiet),
        contextlib.redirect_stderr(quiet),
    ):
        _, robust = robustbench_eval.benchmark(
            model, n_examples=len(labels), dataset="cifar10", threat_model=threat.norm, eps=threat.eps, batch_size=len(labels)
        )
    return round(robust * len(labels))


def timed(call: Callable[[], int]) -> Took:
    wall, process = time.perf_counter(), time.process_time()
    robust = call()
    return time.process_time() - process, time.perf_counter() - wall, robust


def measure(model: nn.Module, split: Split, threat: ThreatModel, repeats: int, name: str) -> dict[str, list[Took]]:
    took: dict[str, list[Took]] = {side: [] for side in SIDES}
    for repeat in range(repeats):
        first = repeat % len(SIDES)
        for side in SIDES[first:] + SIDES[:first]:
            took[side].append(timed(lambda s=side, r=repeat: attacked(s, model, split, threat, r)))
            place = f"{name} {threat.label}: repeat {repeat + 1} of {repeats}: {side}"
            print(f"{place}: {took[side][-1][0]:.1f} s", file=sys.stderr, flush=True)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description="Time of the fast engine, the reference and robustbench.")
    parser.add_argument("--models", type=int)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    set_up("cpu")
    torch.set_num_threads(1)
    split = evaluation_images(asked.images)
    models = {name: trained(name) for name in MODELS[: asked.models]}
    one = split[0][:1], split[1][:1]
    for side in SIDES:  # what the first call alone pays for is no part of a repeat
        attacked(side, models[MODELS[0]], one, THREATS[0], 0)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, one thread; {len(split[1])} images, {asked.repeats} repeats; ", end=""
    )
    print(f"torch {version('torch')}, robustbench {version('robustbench')}\n")
    print("| model | threat | side | CPU s, median (all) | wall s, median | robust | times the fast engine's CPU s |")
    print("|---|---|---|---|---|---|---|")
    ratios = []
    for name, model in models.items():
        for threat in THREATS:
            took = measure(model, split, threat, asked.repeats, name)
            median = {side: statistics.median(t[0] for t in took[side]) for side in SIDES}
            ratios.append(median["reference"] / median["fast"])
            for side in SIDES:
                each = ", ".join(f"{cpu:.2f}" for cpu, _, _ in took[side])
                wall = statistics.median(t[1] for t in took[side])
                robust = " ".join(str(count) for *_, count in took[side])
                times = "" if side == "fast" else f"{median[side] / median['fast']:.2f}"
                print(f"| {name} | {threat.label} | {side} | {median[side]:.2f} ({each}) | {wall:.2f} | ", end="")
                print(f"{robust} | {times} |", flush=True)
    middle = statistics.median(ratios)
    met = "met" if min(ratios) >= TARGET and asked.repeats >= 3 else "**not met**"
    print(f"\n- {met}: the reference takes {TARGET:g} times as long or more everywhere, ", end="")
    print("by the median of 3 repeats or more: ", end="")
    print(f"at least {min(ratios):.2f} times, median {middle:.2f}, {asked.repeats} repeats")


if __name__ == "__main__":
    errors.run(main)
