"""Seconds of a training step that one, two or more processes share, of real rows.

`python measurements/training_processes.py [processes] [rounds]`: the row's own network, recipe and batch, 16 steps of random
images, native arithmetic, one thread a process; the slowest rank's wall time, since they wait for each other, so nothing else
should run. One and several take turns; medians over the rounds.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import torch
from ranked import Answer, together

from benchmark.loading import methods
from benchmark.loading.fitting import augment_of, fabric_of, training_attack, training_objective, training_penalties
from benchmark.loading.rows import Row, load_row
from benchmark.specs.run import TrainRun
from benchmark.training.ranks import ALONE, Ranks
from benchmark.training.steps import Steps

ROWS = (("digits", "Dosovitskiy2021ViT-standard"), ("cifar10_jpeg", "Dosovitskiy2021ViT-standard"),
        ("cifar10_jpeg", "Debenedetti2022XCiT-adversarial"), ("cifar10_jpeg", "Gupta2023CertViT-cnn"))  # fmt: skip
STEPS = 16


def seconds(row: Row, ranks: Ranks) -> float:
    """Of a step, after one that is not counted."""
    spec, data = row.settings.training, row.track.data
    assert spec is not None
    torch.manual_seed(0)
    model = methods.build_model(row.submission, row.settings, row.track)
    objective = training_objective(spec, training_attack(spec.attack) if spec.attack else None)
    closing = augment_of(spec.closing.augmentation, data) if spec.closing else None
    penalties = training_penalties(spec, row.submission.name, model)
    one = torch.rand(1, *data.shape)
    ready = augment_of(spec.augmentation, data), closing, penalties, ranks
    steps = Steps.of(model, objective, spec, fabric_of(TrainRun()), one, *ready)
    images, labels = (
        torch.rand(STEPS * spec.batch_size, *data.shape),
        torch.randint(data.classes, (STEPS * spec.batch_size,)),
    )
    steps.epoch(images[: spec.batch_size], labels[: spec.batch_size], spec.epochs - 1, 0)
    start = time.perf_counter()
    steps.epoch(images, labels, spec.epochs - 1, 0)
    return (time.perf_counter() - start) / STEPS


def shared(row: Row, processes: int) -> float:
    if processes == 1:
        return seconds(row, ALONE)

    def work(ranks: Ranks) -> Answer:
        return {"seconds": seconds(row, ranks)}, {}

    return max(said["seconds"] for said, _ in together(processes, work))


def main(processes: int, rounds: int) -> None:
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {rounds} rounds of {STEPS} steps, ms a step\n")
    print(f"| row | batch | parameters | one process | {processes} | gain |\n|---|---|---|---|---|---|")
    for track, name in ROWS:
        row = load_row(track, name)
        assert row.settings.training is not None
        took: dict[int, list[float]] = {1: [], processes: []}
        for _ in range(rounds):
            for count, found in took.items():
                found.append(shared(row, count))
        one, several = (1000 * statistics.median(found) for found in took.values())
        size = sum(p.numel() for p in methods.build_model(row.submission, row.settings, row.track).parameters())
        batch = row.settings.training.batch_size
        print(f"| {track}, {name} | {batch} | {size:,} | {one:.1f} | {several:.1f} | {one / several:.2f} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2, int(sys.argv[2]) if len(sys.argv) > 2 else 5)
