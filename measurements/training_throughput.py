"""Steps per second of the training loop against the same forwards and backwards in a bare loop of plain torch.

`python measurements/training_throughput.py [repeats] [epochs]`: a row's network and data, FGSM training from a random start
(one forward and backward for the attack, one for the step) and standard training, AdamW, batch 32, CPU, one thread. Both
sides run in turn in one process; medians of CPU seconds, which other work on the machine stretches less than wall time. The
bare loop has no Fabric, no checks, no checkpoints and no schedule.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmark.loading import methods

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from lightning_fabric import Fabric

from benchmark.data.digits import read
from benchmark.loading import submissions, tracks
from benchmark.loading.fitting import training_attack, training_objective
from benchmark.specs.training import TrainingSpec
from benchmark.training.capture import Split
from benchmark.training.loop import train
from benchmark.training.selection import SelectionMetric

FGSM = {"attack": "fgsm", "norm": "Linf", "eps": 0.15, "parameters": {"step": 1.25, "random_start": True}}
BATCH = 32


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return methods.build(submissions.load("Wong2020Fast"), "linf", tracks.load("digits"))


def digits() -> Split:
    images = read(tracks.load("digits").data)["all"]
    return torch.from_numpy(images.floats()), torch.from_numpy(images.labels)


def ours(data: Split, objective: str, epochs: int) -> float:
    """Seconds of the loop's epochs, checkpoints among them, but nothing scored."""
    attack = FGSM if objective == "adversarial" else None
    spec = TrainingSpec(
        objective=objective, attack=attack, epochs=epochs, batch_size=BATCH, learning_rate=0.003, weight_decay=0.05
    )
    goal = training_objective(spec, training_attack(spec.attack) if spec.attack else None)
    model, fabric = network(), Fabric(accelerator="cpu", devices=1)
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        train(
            model, goal, spec, data, (data[0][:1], data[1][:1]),
            fabric=fabric, seed=0, checkpoint=Path(folder) / "c", metric=SelectionMetric("nothing", lambda *_: 0.0),
        )  # fmt: skip
        return time.process_time() - start


def bare(data: Split, objective: str, epochs: int) -> float:
    """The same forwards and backwards, by hand."""
    model, (images, labels) = network(), data
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0.05)
    entropy, eps = torch.nn.functional.cross_entropy, FGSM["eps"]
    model.train()
    start = time.process_time()
    for _ in range(epochs):
        for batch in torch.randperm(len(labels)).split(BATCH):
            x, y = images[batch], labels[batch]
            if objective == "adversarial":
                model.requires_grad_(False)
                moved = (x + (2 * torch.rand_like(x) - 1) * eps).clamp(0, 1).requires_grad_()
                (slope,) = torch.autograd.grad(entropy(model(moved), y, reduction="sum"), moved)
                moved = moved.detach() + 1.25 * eps * slope.sign()
                x = torch.minimum(torch.maximum(moved, x - eps), x + eps).clamp(0, 1)
                model.requires_grad_(True)
            optimizer.zero_grad()
            entropy(model(x), y).backward()
            optimizer.step()
    return time.process_time() - start


def main(repeats: int = 5, epochs: int = 5) -> None:
    torch.set_num_threads(1)
    data = digits()
    steps = epochs * -(-len(data[1]) // BATCH)
    print(f"{platform.machine()}, torch {torch.__version__}, one thread, {repeats} runs of {steps} steps in turn\n")
    print("| training | loop, steps/s | bare, steps/s | ratio (median of pairs) | ratios |\n|---|---|---|---|---|")
    for objective in ("adversarial", "standard"):
        ours(data, objective, 1), bare(data, objective, 1)  # warm up
        pairs = [(ours(data, objective, epochs), bare(data, objective, epochs)) for _ in range(repeats)]
        a, b = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratios = sorted(bare_seconds / seconds for seconds, bare_seconds in pairs)
        shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(
            f"| {objective} | {steps / a:.1f} | {steps / b:.1f} | {statistics.median(ratios):.2f} | {shown} |",
            flush=True,
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
