"""Stage `attack-<suite>`: one suite on one row. `python -m benchmark.stages.attack <track> <submission> <variant> <suite>`"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from rich.console import Console
from safetensors.torch import save

from benchmark.evaluation.division import inspect
from benchmark.evaluation.run_attack import AttackState, Report, run_attack
from benchmark.loading import methods
from benchmark.loading.rows import Entry, entry
from benchmark.loading.run_settings import run_settings
from benchmark.loading.trained import evaluation_images, trained_model
from benchmark.runtime import errors, files, scratch
from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.runtime.torch_setup import set_up
from benchmark.specs.base import to_json
from benchmark.specs.threat import AttackSpec
from benchmark.specs.track import ADAPTIVE
from benchmark.stages.base import Clock, evaluation_inputs, finish
from benchmark.verdicts.ball import distances
from benchmark.verdicts.prediction import Judged, judge


def attack_row(track: str, submission: str, variant: str, suite: str, engine: str = "") -> None:
    """Writes work/<track>/<row>/attack-<suite>: verdicts.parquet, adversarial.safetensors, attacks.json, model.json.

    `engine` is that of params.yaml unless given.
    """
    row = entry(track, submission, variant)
    if suite in row.track.development:
        raise BenchmarkError(
            f"suite {suite} is for development and never published; run `rvb attack {row.row} --suite {suite}`"
        )
    if suite == ADAPTIVE and suite not in row.suites:
        raise BenchmarkError(f"{row.row} declares no adaptive attack on {track}; see docs/bring-an-attack.md")
    if suite not in row.suites:
        raise BenchmarkError(f"track {track} has no suite {suite!r}{near_miss(suite, row.suites)}")
    run = run_settings().evaluate
    stage, device, engine = f"attack-{suite}", set_up(run.device), engine or run.engine
    inputs = evaluation_inputs(row, stage, suite_inputs(row, suite, engine))
    with scratch.locked(f"{track}/{row.row}/{stage}", inputs, row.folder / stage) as folder:
        if folder is not None:
            _attack(row, suite, folder, device, engine, inputs["code"])


def suite_inputs(row: Entry, suite: str, engine: str) -> dict[str, Any]:
    """What the result of a suite depends on beside the row."""
    specs = {**row.track.development, **row.suites}[suite]
    return {"suite": [spec.model_dump(mode="json") for spec in specs], "engine": engine}


def run_suite(
    row: Entry,
    suite: str,
    model: torch.nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    folder: Path,
    engine: str,
    report: Report,
) -> Iterator[tuple[AttackSpec, AttackState, Judged]]:
    """Each attack of a suite of the row or of its track's development, with what it left and the verdict on it; partial
    work is kept in `folder`. Only an adaptive attack may be the submission's own file: none takes the track's from it.
    """
    for spec in {**row.track.development, **row.suites}[suite]:
        state, after = run_attack(
            model,
            images,
            labels,
            spec,
            batch_size=row.track.evaluation.batch_size,
            checkpoint=folder / f"{spec.id}.safetensors",
            engine=engine,
            report=report,
            module=methods.attack(spec.attack, row.submission.name) if suite == ADAPTIVE else None,
        )
        yield spec, state, after


def _attack(row: Entry, suite: str, folder: Path, device: torch.device, engine: str, code_digest: str) -> None:
    clock, console = Clock(folder), Console(stderr=True, soft_wrap=True)
    images, labels = evaluation_images(row, device)
    model = trained_model(row, device)
    batch_size = row.track.evaluation.batch_size
    facts = inspect(model, images[:batch_size], labels[:batch_size], row.submission)
    clean = judge(model, images, labels, batch_size)
    columns = {"label": labels, "clean_prediction": clean.prediction, "clean_margin": clean.margin}
    adversarial, summary = {}, []

    def report(text: str) -> None:
        clock.lap()
        console.print(f"{row.row}: {text}", highlight=False)

    for spec, state, after in run_suite(row, suite, model, images, labels, folder, engine, report):
        columns |= _verdict_columns(spec, clean, after, state.adversarial, images)
        adversarial[spec.id] = state.adversarial.cpu().contiguous()
        summary.append(
            {
                "spec": spec.model_dump(mode="json"),
                "engine": state.engine,
                "remaining": state.remaining,
                "warnings": state.warnings,
            }
        )
        console.print(f"{row.row}: {spec.id}: {int(after.right.sum())} of {len(labels)} robust", highlight=False)
    out = folder / "out"
    out.mkdir(exist_ok=True)
    pq.write_table(pa.table({name: tensor.cpu().numpy() for name, tensor in columns.items()}), out / "verdicts.parquet")
    files.write(out / "adversarial.safetensors", save(adversarial))
    files.write_json(out / "attacks.json", summary)
    files.write(out / "model.json", to_json(facts))
    finish(row, f"attack-{suite}", out, code_digest, clock)


def _verdict_columns(
    spec: AttackSpec, clean: Judged, after: Judged, adversarial: torch.Tensor, images: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Per image: whether the attack succeeded on a rightly classified image, what it became, and how far it moved."""
    moved = distances(adversarial, images)
    return {
        f"{spec.id}:success": clean.right & ~after.right,
        f"{spec.id}:prediction": after.prediction,
        f"{spec.id}:margin": after.margin,
        f"{spec.id}:linf": moved["Linf"],
        f"{spec.id}:l2": moved["L2"],
    }


if __name__ == "__main__":
    errors.run(lambda: attack_row(*sys.argv[1:]))
