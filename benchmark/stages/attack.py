"""Stage `attack-<suite>`: one suite on one row. `python -m benchmark.stages.attack <track> <submission> <variant> <suite>`"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from rich.console import Console
from safetensors.torch import save

from benchmark import errors, files, scratch
from benchmark.errors import BenchmarkError, near_miss
from benchmark.evaluate import Judged, has_engines, judge, run_attack
from benchmark.inspection import inspect
from benchmark.records import AttackSpec, to_json
from benchmark.stages.context import Clock, Entry, entry, evaluation_inputs, finish, run_settings
from benchmark.stages.model import evaluation_images, set_up, trained_model
from benchmark.verdicts import distances


def attack_row(track: str, submission: str, variant: str, suite: str, engine: str = "") -> None:
    """Writes work/<track>/<row>/attack-<suite>: verdicts.parquet, adversarial.safetensors, attacks.json, model.json.

    `engine` is that of params.yaml unless given.
    """
    row = entry(track, submission, variant)
    if suite not in row.track.suites:
        raise BenchmarkError(f"track {track} has no suite {suite!r}{near_miss(suite, row.track.suites)}")
    run = run_settings().evaluate
    stage, device, engine = f"attack-{suite}", set_up(run.device), engine or run.engine
    rules = [spec.model_dump(mode="json") for spec in row.track.suites[suite]]
    inputs = evaluation_inputs(row, stage, {"suite": rules, "engine": engine})
    with scratch.locked(f"{track}/{row.row}/{stage}", inputs, row.folder / stage) as folder:
        if folder is not None:
            _attack(row, stage, folder, device, engine, inputs["code"])


def _attack(row: Entry, stage: str, folder: Path, device: torch.device, engine: str, code_digest: str) -> None:
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

    for spec in row.track.suites[stage.removeprefix("attack-")]:
        state, after = run_attack(
            model,
            images,
            labels,
            spec,
            batch_size=batch_size,
            checkpoint=folder / f"{spec.id}.safetensors",
            engine=engine,
            report=report,
        )
        columns |= _verdict_columns(spec, clean, after, state.adversarial, images)
        adversarial[spec.id] = state.adversarial.cpu().contiguous()
        summary.append(
            {
                "spec": spec.model_dump(mode="json"),
                "engine": engine if has_engines(spec) else None,
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
    finish(row, stage, out, code_digest, clock)


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
