"""Part `throughput` of gpu.py: images a second of the training loop and of bare loops in plain PyTorch, in one process.

    python measurements/gpu_throughput.py [--device cpu --batch 16]

The loop is `benchmark.training.steps`, an epoch of random images without augmentation or validation; `captured` is
`train.compile` as the sandbox has it, `compiled` as it is without (torch.compile before the capture). The bare loops have the
same network, losses, attack and optimiser (fused AdamW), and nothing else; `graph` captures the whole step. The first epoch
of each warms up. `of best` is the loop's best over the best bare loop at the same precision; the aim is 0.9.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from gpu_common import left, row
from torch import nn
from torch.nn.functional import cross_entropy

from benchmark.layers.normalise import Normalise
from benchmark.layers.vit import timm_vit
from benchmark.runtime import errors
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.torch_setup import set_up, stop_filling, tensor_float32
from benchmark.specs import methods, submissions, tracks
from benchmark.specs.run_settings import TrainRun
from benchmark.specs.training import TrainingSpec
from benchmark.training import capture
from benchmark.training.capture import CudaRecorder
from benchmark.training.fitting import fabric_of, training_attack, training_objective
from benchmark.training.steps import Steps

warnings.simplefilter("ignore", FutureWarning)
EPS, RATE = 8 / 255, 1e-4
ATTACKS = {
    "standard": None,
    "fgsm": {"attack": "fgsm", "norm": "Linf", "eps": EPS, "parameters": {"step": 1.25, "random_start": True}},
    "pgd-10": {"attack": "pgd", "norm": "Linf", "eps": EPS, "parameters": {"steps": 10, "step_size": EPS / 4}},
}
STEPS = {"standard": 0, "fgsm": 1, "pgd-10": 10}
ENOUGH = 1.5  # seconds of steps that are timed
# networks, trainings, batches and precisions, the most telling first
PLAN = (
    *itertools.product(["DeiT-Ti/4", "XCiT-S12"], ["fgsm"], [512], ["bf16-mixed"]),
    *itertools.product(["DeiT-Ti/4"], ["fgsm"], [512], ["tf32", "32-true"]),
    *itertools.product(["Debenedetti2022XCiT-adversarial"], ["fgsm"], [128], ["32-true", "bf16-mixed"]),
    *itertools.product(["DeiT-Ti/4", "XCiT-S12"], ["standard", "pgd-10"], [512], ["bf16-mixed"]),
    *itertools.product(["DeiT-Ti/4", "XCiT-S12"], ["fgsm"], [128], ["bf16-mixed"]),
    *itertools.product(["Wang2022Cauchy-vit", "Hu2024SpecFormer-plain"], ["standard"], [128], ["32-true"]),
)


@dataclass(frozen=True)
class Case:
    network: str
    training: str
    batch: int
    precision: str

    @property
    def run(self) -> TrainRun:
        tf32 = self.precision == "tf32"
        return TrainRun(device="cuda", precision="32-true" if tf32 else self.precision, tf32=tf32)

    @property
    def spec(self) -> TrainingSpec:
        return TrainingSpec.model_validate(
            {
                "objective": "adversarial" if ATTACKS[self.training] else "standard", "attack": ATTACKS[self.training],
                "epochs": 1000, "batch_size": self.batch, "learning_rate": RATE, "schedule": "constant",
                "weight_decay": 0.05,
            }
        )  # fmt: skip

    def built(self) -> nn.Module:
        torch.manual_seed(0)
        data = tracks.load("cifar10_jpeg").data
        if self.network == "DeiT-Ti/4":
            vit = timm_vit(img_size=32, patch_size=4, num_classes=10, embed_dim=192, depth=12, num_heads=3)
            return nn.Sequential(Normalise(), vit)
        if self.network == "XCiT-S12":
            method = methods.module("Debenedetti2022XCiT", "method")
            return method.build(data, stride_one=2, width=384, depth=12, heads=8)
        submission, _, variant = self.network.partition("-")
        return methods.build(submissions.load(submission), variant, tracks.load("cifar10_jpeg"))


def ours(case: Case, device: torch.device, mode: str) -> Callable[[int], None]:
    """Return what takes so many steps of the loop."""
    spec, run = case.spec, case.run
    objective = training_objective(spec, training_attack(spec.attack) if spec.attack else None)
    fabric = fabric_of(run.model_copy(update={"device": device.type, "tf32": run.tf32 and device.type == "cuda"}))
    images, labels = drawn(case.batch, device)
    recorder = CudaRecorder(device) if mode != "plain" else None
    with compiling(mode == "compiled"):
        steps = Steps(case.built(), objective, spec, fabric, images[:1].cpu(), recorder=recorder)
    epochs = itertools.count()

    def take(count: int) -> None:
        many = -(-count * case.batch // len(images))
        x, y = (t.repeat(many, *[1] * (t.ndim - 1))[: count * case.batch] for t in (images, labels))
        steps.epoch(x, y, next(epochs), 0)
        if steps.captured and steps.captured.problem:
            raise BenchmarkError(steps.captured.problem)

    return take


@contextlib.contextmanager
def compiling(wanted: bool) -> Iterator[None]:
    """With or without torch.compile before the capture, whatever this process may start."""
    kept = capture._starts_programs
    capture._starts_programs = lambda: wanted
    try:
        yield
    finally:
        capture._starts_programs = kept


def bare(case: Case, device: torch.device, mode: str) -> Callable[[int], None]:
    """Return what takes so many steps of plain PyTorch."""
    model = case.built().to(device).train()
    forward = torch.compile(model, dynamic=False) if "compiled" in mode else model
    graphed, on_gpu = "graph" in mode, device.type == "cuda"
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=RATE, weight_decay=0.05, fused=on_gpu or None, capturable=graphed and on_gpu
    )
    images, labels = drawn(case.batch, device)
    x, y = images.clone(), labels.clone()

    def logits(points: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=case.precision == "bf16-mixed"):
            return forward(points)

    def step() -> None:
        points, count = x, STEPS[case.training]
        if count:
            size = 1.25 * EPS if count == 1 else EPS / 4
            model.eval().requires_grad_(False)
            points = (x + (2 * torch.rand_like(x) - 1) * EPS).clamp(0, 1)
            for _ in range(count):
                points.requires_grad_(True)
                (slope,) = torch.autograd.grad(cross_entropy(logits(points), y, reduction="sum"), points)
                moved = points.detach() + size * slope.sign()
                points = torch.minimum(torch.maximum(moved, x - EPS), x + EPS).clamp(0, 1)
            model.train().requires_grad_(True)
        optimizer.zero_grad()
        cross_entropy(logits(points), y).backward()
        optimizer.step()

    work = step
    if graphed:
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            step()
        work = graph.replay

    def take(count: int) -> None:
        order = torch.randperm(len(images), device=device)
        for _ in range(count):
            x.copy_(images[order])
            y.copy_(labels[order])
            work()

    return take


def drawn(batch: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(batch, 3, 32, 32, generator=generator)
    return images.to(device), (torch.arange(batch) % 10).to(device)


def rate(case: Case, take: Callable[[int], None], device: torch.device) -> float:
    """Images a second, over `ENOUGH` seconds of steps after some that warm up."""

    def timed(count: int) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        take(count)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    timed(6)
    once = timed(3) / 3
    count = max(3, min(500, int(ENOUGH / once)))
    return count * case.batch / timed(count)


# (side, mode, how) of a process; what is compiled takes up to a minute, and a mode that fails may spoil those after it
MODES = (
    (("loop", "plain", ours), ("loop", "captured", ours), ("bare", "eager", bare), ("bare", "graph", bare)),
    (("loop", "compiled", ours),),
    (("bare", "compiled and graph", bare),),
)
COMPILES = 40.0  # seconds that a compiled mode is begun with


def measure(case: Case, device: torch.device, modes=MODES[0]) -> None:
    """Print images a second by side and mode, each as it is measured; words in its place where it could not be."""
    for side, mode, make in modes:
        try:
            with tensor_float32(case.run.tf32):
                speed = round(rate(case, make(case, device, mode), device), 1)
            row("images a second", **about(case), side=side, mode=mode, rate=speed, problem="")
        except Exception as error:  # another mode may work: what stopped this one is the finding
            problem = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
            row("images a second", **about(case), side=side, mode=mode, rate=None, problem=problem)
        if device.type == "cuda":
            torch.cuda.empty_cache()


def about(case: Case) -> dict[str, str | int]:
    return {"network": case.network, "training": case.training, "batch": case.batch, "precision": case.precision}


def every_case(given: argparse.Namespace) -> None:
    """Each case of the plan in processes, as far as the time goes; rows say which were not measured, and why."""
    for number, planned in enumerate(PLAN):
        if left() < 15:
            row("not measured", case=f"{len(PLAN) - number} more", why="no time was left")
            return
        found: list[dict[str, object]] = []
        for modes in range(len(MODES)):
            if modes and left() < COMPILES:
                break
            found += apart(given, number, modes, ", ".join(map(str, planned)))
        best = {
            side: max((one["rate"] for one in found if one["side"] == side and one["rate"]), default=0.0)
            for side in ("loop", "bare")
        }
        if all(best.values()):
            case = Case(*planned)
            row("of best", **about(case), **best, ratio=round(best["loop"] / best["bare"], 2))


def apart(given: argparse.Namespace, number: int, modes: int, words: str) -> list[dict[str, object]]:
    """Measure some modes of a case in a process; its rows, which are printed too."""
    again = [sys.executable, __file__, "--case", str(number), "--modes", str(modes), "--device", given.device]
    again += ["--batch", str(given.batch)]
    environment = os.environ | {"GPU_SECONDS": str(left())}
    try:
        ended = subprocess.run(again, timeout=max(left(), 1), env=environment, stdout=subprocess.PIPE, text=True, check=False)
        printed, why = ended.stdout, f"exit status {ended.returncode}" if ended.returncode else ""
    except subprocess.TimeoutExpired as error:
        printed, why = (error.stdout or b"").decode(), "no time was left"
    print(printed, end="", flush=True)
    if why:
        row("not measured", case=f"{words}: {MODES[modes][0][1]} and on", why=why)
    return [json.loads(line) for line in printed.splitlines() if line.startswith('{"table"') and line.endswith("}")]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=0, help="in place of the plan's")
    parser.add_argument("--case", type=int, default=-1, help="one case of the plan by its number, in this process")
    parser.add_argument("--modes", type=int, default=0, help="which of its modes: not compiled, the loop's, the bare loop's")
    given = parser.parse_args()
    device = set_up(given.device)
    if given.case < 0:
        every_case(given)
        return
    network, training, batch, precision = PLAN[given.case]
    case = Case(network, training, given.batch or batch, precision)
    stop_filling()
    measure(case, device, MODES[given.modes])


if __name__ == "__main__":
    errors.run(main)
