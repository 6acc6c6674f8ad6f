"""Seconds of ten training steps of SpecFormer and of what it is compared with, beside a plain ViT's (Hu et al., Table 3).

    python measurements/penalty_overhead.py digits 7
    python measurements/penalty_overhead.py deit 3

`digits`: the study's networks (width 32, depth 2, 17 tokens, batches of 32); `deit`: DeiT-Ti's size at 32x32 with patches of
4 (65 tokens, batches of 16). Standard training, and adversarial against PGD of 10 steps, by the benchmark's own loop. All
methods take turns; the process's own seconds, one thread; medians over the rounds, and of the ratios to the plain ViT in the
same round.
"""

from __future__ import annotations

import contextlib
import io
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from lightning_fabric import Fabric

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmark.loading import methods, submissions, tracks
from benchmark.loading.fitting import training_attack, training_objective, training_penalties
from benchmark.runtime import arithmetic
from benchmark.runtime.torch_setup import set_up
from benchmark.specs.training import TrainingSpec
from benchmark.training.loop import train
from benchmark.training.selection import SelectionMetric

NAME, STEPS = "Hu2024SpecFormer", 10
MSVP = [{"name": "msvp", "parameters": {"lambda_q": 1e-3, "lambda_k": 1e-3, "lambda_v": 1e-3}}]
METHODS: dict[str, tuple[dict[str, str], list[dict[str, object]]]] = {
    "ViT": ({}, []),
    "LipsFormer": ({"attention": "scaled_cosine"}, []),
    "L2Former": ({"attention": "l2"}, []),
    "LNFormer": ({"attention": "lipschitz_norm"}, []),
    "SpecFormer": ({}, MSVP),
}
SIZES = {
    "digits": ("digits", {"patch_size": 2, "width": 32, "depth": 2, "heads": 4}, 32),
    "deit": ("cifar10_jpeg", {"backbone": "deit", "patch_size": 4, "width": 192, "depth": 12, "heads": 3}, 16),
}
PGD = {"attack": "pgd", "norm": "Linf", "eps": 0.03, "parameters": {"steps": 10, "step_size": 0.0075}}


def main(size: str, rounds: int) -> None:
    set_up("cpu")
    words = f"{platform.machine()}, one thread, torch {torch.__version__}, {arithmetic.in_force()} arithmetic"
    print(f"{size}: {words}; {STEPS} steps, {rounds} rounds, medians\n")
    print("| training | method | CPU seconds | over the plain ViT's, median | all |\n|---|---|---|---|---|", flush=True)
    for adversarial in (False, True):
        seconds: dict[str, list[float]] = {name: [] for name in METHODS}
        for turn in range(-1, rounds):  # the first round warms up
            for name in METHODS:
                spent = _steps(size, name, adversarial)
                if turn >= 0:
                    seconds[name].append(spent)
        for name, spent_in in seconds.items():
            ratios = sorted(a / b for a, b in zip(spent_in, seconds["ViT"], strict=True))
            every = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            kind = "adversarial" if adversarial else "standard"
            middle = statistics.median(ratios)
            print(f"| {kind} | {name} | {statistics.median(spent_in):.3f} | {middle:.2f} | {every} |", flush=True)


def _steps(size: str, name: str, adversarial: bool) -> float:
    """Seconds of one epoch of STEPS batches, validation and what comes before left out."""
    track, shape, batch = SIZES[size]
    options, penalties = METHODS[name]
    rules = tracks.load(track)
    torch.manual_seed(0)
    model = methods.method(NAME).build(rules.data, **shape, **options)
    spec = TrainingSpec.model_validate(
        {
            "objective": "adversarial" if adversarial else "standard", "attack": PGD if adversarial else None,
            "epochs": 1, "batch_size": batch, "optimizer": "sgd", "learning_rate": 0.01, "schedule": "constant",
            "clip_norm": 1.0, "penalties": penalties,
        }
    )  # fmt: skip
    attack = training_attack(spec.attack) if spec.attack else None
    images = torch.rand(STEPS * batch, *rules.data.shape), torch.arange(STEPS * batch) % rules.data.classes
    found = training_penalties(spec, NAME, model)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):  # the progress bar's
        started = time.process_time()
        train(
            model, training_objective(spec, attack), spec, images, (images[0][:2], images[1][:2]),
            fabric=Fabric(accelerator="cpu", devices=1), seed=0, checkpoint=Path(folder) / "checkpoint",
            metric=SelectionMetric("", lambda *_: 0.0), penalties=found,
        )  # fmt: skip
        return time.process_time() - started


if __name__ == "__main__":
    assert NAME in submissions.names()
    main(sys.argv[1] if len(sys.argv) > 1 else "digits", int(sys.argv[2]) if len(sys.argv) > 2 else 7)
