"""Two short epochs of each recipe that needs a GPU, on one core of a CPU: does it build, learn, and can it be measured?

    python measurements/short_recipes.py [--training-alone] [study or row, with `@<track>` ...]

Without arguments: every study of images that are not digits, and every row there that has no Record. A network has its own
size, and its recipe its own objective, attack at its full radius, penalties, augmentation and preparations. But an epoch has
two batches of 8 images (2 that are larger than 32x32, or enlarged): of `cifar10_jpeg` where these are prepared, else noise of
the track's shape. Preparations take one round. Of a study one seed is run, and its measures are taken of two images, but for
AutoAttack and those whose package is missing. So no number is a row's.
Prints a row of a table for each, with why a measure was not taken, and what fails to stderr; exits with 1 if a recipe failed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from benchmark.attacks.internals import internals
from benchmark.attacks.prediction import logits
from benchmark.data.images import Images, load_split, save_split
from benchmark.evaluation.certified_radii import certified_radii
from benchmark.evaluation.run_attack import run_attack
from benchmark.layers.trained import trained_model
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import PUBLISHED, WORK
from benchmark.runtime.torch_setup import set_up
from benchmark.specs import submissions, tracks
from benchmark.specs.rows import Row, load_row
from benchmark.specs.run_settings import TrainRun
from benchmark.specs.track import Track
from benchmark.specs.training import TrainingSpec
from benchmark.studies import grids, own
from benchmark.studies.checks import certificate_of
from benchmark.training.fitting import fit

ROOT = Path(__file__).resolve().parent.parent
OTHERS = ("digits", "reviews", "sst2")  # digits have Records, and text needs no GPU
ROUNDS = {
    "proximal_projection": {"outer": 1, "inner": 2, "samples": 8, "batch_size": 8},
    "l2_distillation": {"layer_epochs": 1, "epochs": 1, "batch_size": 8},
}


ALONE = "--training-alone"  # without measures: bound (16) of Wang's smallest network had not ended after six minutes


def main() -> None:
    set_up("cpu")
    started, failed = seconds(), 0
    names = [name for name in sys.argv[1:] if name != ALONE]
    rows = list(chosen(names))
    known = {row.network.study if row.network else row.name for row in rows}
    if unknown := sorted({name.partition("@")[0] for name in names} - known):
        sys.exit(f"no study or row is called {', '.join(unknown)}; `rvb list` shows them")
    with tempfile.TemporaryDirectory() as place:
        for name in ("submissions", "benchmark", "leaderboard", "params.yaml"):
            (Path(place) / name).symlink_to(ROOT / name)
        os.chdir(place)
        print("| track | recipe | parameters | loss of epochs 1, 2 | measured | core-seconds |\n|---|---|--:|---|---|--:|")
        for row in rows:
            try:
                print(line(row), flush=True)
            except BenchmarkError as error:
                failed += 1
                print(f"{row.track.name}: {title(row)}: {error}", file=sys.stderr, flush=True)
    print(f"\n{len(rows)} recipes, {failed} failed, {seconds() - started:.0f} core-seconds")
    sys.exit(bool(failed))


def chosen(names: Sequence[str]) -> Iterator[Row]:
    """The networks of one seed of each study, and rows; those that start from another come after it."""
    asked = [name.partition("@") for name in names]
    for track in tracks.names():
        wanted = {name for name, _, on in asked if on in ("", track)}
        if track in OTHERS and not names:
            continue
        for grid in grids.load_all(track):
            if grid.id in wanted if names else not grid.name.endswith("seeds"):
                yield from (row for row in grid.networks() if row.network and row.network.seed == grid.study.seeds[0])
        for owner, variant in submissions.rows(track):
            name = f"{owner.name}-{variant}"
            if name in wanted if names else not (PUBLISHED / track / f"{name}.json").exists():
                yield load_row(track, name)


def batch(row: Row) -> int:
    """8 images; 2 that are larger than 32x32, or that the network enlarges."""
    return 8 if max(row.track.data.shape[1], int(row.settings.model.get("resize", 0))) <= 32 else 2


def seconds() -> float:
    """Processor time of this process and of those that it waited for."""
    return sum(os.times()[:4])


def title(row: Row) -> str:
    return f"{row.network.study}: {row.network.cell}" if row.network else row.name


def line(row: Row) -> str:
    """A row of the table, after training and measures.

    Raises:
        BenchmarkError: a part of the recipe does not apply, or a loss or an output is not finite.
    """
    started = seconds()
    few_images(row.track, row.data, batch(row))
    assert row.settings.training is not None
    settings = row.settings.model_copy(update={"training": short(row.settings.training, batch(row))})
    row = replace(row, settings=settings)
    if row.source and not row.source.network and not row.source.weights.exists():
        line(row.source)
    with redirect_stdout(sys.stderr):  # where the loop shows its progress
        best, done, _ = fit(row, TrainRun(), row.folder, lambda epoch, score: None)
    row.weights.parent.mkdir(parents=True, exist_ok=True)
    save_file(best, row.weights)
    model, test = trained_model(row, torch.device("cpu")), load_split(row.data, "test")
    images, labels = torch.from_numpy(test.floats()), torch.from_numpy(test.labels)
    if not bool(torch.isfinite(logits(model, images, len(images))).all()) or not np.isfinite(done.losses).all():
        raise BenchmarkError(f"an output or a loss is not finite: {done.losses}")
    names = [] if ALONE in sys.argv else measured(row, model, images, labels)
    losses = ", ".join(f"{loss:.3f}" for loss in done.losses)
    count, taken = internals(model, images[:1]).parameters, seconds() - started
    return f"| {row.track.name} | {title(row)} | {count:,} | {losses} | {', '.join(names)} | {taken:.0f} |"


@cache
def real_images(split: str) -> Images | None:
    """The first ones of the prepared track `cifar10_jpeg`."""
    folder = ROOT / WORK / "cifar10_jpeg" / "data"
    return load_split(folder, split).take(np.arange(16)) if (folder / "data.json").exists() else None


def few_images(track: Track, folder: Path, size: int) -> None:
    random, counts, digests = np.random.default_rng(0), {"train": 2 * size, "validation": size, "test": 2}, {}
    for split, count in counts.items():
        labels = np.arange(count, dtype=np.int64) % track.data.classes
        images = Images(random.integers(0, 256, (count, *track.data.shape), np.uint8), labels)
        if track.data.shape == (3, 32, 32) and (real := real_images(split)):
            images = replace(real.take(np.arange(count)), labels=real.labels[:count] % track.data.classes)
        save_split(folder, split, images)
        digests[split] = images.digest()
    files.write_json(folder / "data.json", {"sha256": digests, "levels": 255, "counts": counts})


def short(spec: TrainingSpec, size: int) -> TrainingSpec:
    rounds = [step.model_copy(update={"parameters": step.parameters | ROUNDS[step.name]}) for step in spec.prepare]
    changes = {"epochs": 2, "batch_size": size, "warmup_epochs": 0, "rate_warmup_epochs": min(1, spec.rate_warmup_epochs)}
    return spec.model_copy(update={**changes, "closing": None, "prepare": tuple(rounds)})


def measured(row: Row, model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> list[str]:
    """The labels of the measures that were taken of a study's network, and why others were not."""
    taken = []
    with own.measuring(row, torch.device("cpu")) as ask:
        for measure in row.network.measures if row.network else ():
            absent = measure.needs and find_spec(measure.needs) is None
            if absent or (measure.attack and measure.attack.attack == "autoattack"):
                continue
            try:
                if measure.attack:
                    run_attack(model, images, labels, measure.attack, batch_size=len(images))
                elif measure.measure == "certified":
                    certified_radii(model, images, labels, certificate_of(row.settings, measure), len(images))
                elif measure.is_function:
                    assert ask is not None
                    ask(measure, images, labels)
                taken.append(measure.label)
            except BenchmarkError as error:
                taken.append(f"not {measure.label} ({error})")
    return taken


if __name__ == "__main__":
    main()
