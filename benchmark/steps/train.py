"""Step `train`: one row's weights, trained here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.loading.components import recipe_files
from benchmark.loading.rows import Row
from benchmark.loading.run_settings import run_settings
from benchmark.specs.run import TrainRun
from benchmark.steps.base import Outcome, Step, Work, needed

if TYPE_CHECKING:
    from benchmark.training.checkpoint import TrainingProgress


class Train(Step):
    """model.safetensors and history.json; where a row is fine-tuned, from another row's weights."""

    name = "train"
    refusal = "{row} has weights that were trained elsewhere; run `rvb step pretrained {row}`"

    def applies(self, row: Row) -> bool:
        return row.settings.training is not None

    def reads(self, row: Row, name: str, earlier: Sequence[Path]) -> list[Path]:
        return [row.data, *([row.start] if row.start else [])]

    def settings(self, row: Row, name: str) -> dict[str, Any]:
        return {
            "data": row.track.data.model_dump(mode="json", exclude={"sha256", "path"}),
            "run": _run(row).model_dump(mode="json"),
            **row.settings.model_dump(mode="json", include={"model", "training"}),
            **_source_settings(row),
        }

    def components(self, row: Row, name: str) -> list[Path]:
        source = row.source if needed(row.settings.training).prepare else None
        return [
            *row.method_files,
            *(source.method_files if source else []),
            *recipe_files(needed(row.settings.training)),
        ]

    def run(self, work: Work) -> Outcome:
        from safetensors.torch import save

        from benchmark.runtime import files
        from benchmark.sandbox.submitted import in_force, in_words
        from benchmark.sandbox.training import fit_sandboxed

        spec, run = needed(work.row.settings.training), TrainRun.model_validate(work.settings["run"])
        held = in_words(in_force())

        def on_epoch(epoch: int, score: float) -> None:
            work.clock.lap()
            if epoch % max(1, spec.epochs // 4) == 0:
                work.say(f"epoch {epoch} of {spec.epochs}, score {score:.3f}")

        place = work.scratch / "training"  # what its code may write to: nothing there is the judge's to trust
        place.mkdir(exist_ok=True)
        best, done, result, memory = fit_sandboxed(work.row, run, place, on_epoch, work.say)
        work.clock.memory(memory)
        if done.epoch < spec.epochs:
            patience = spec.selection.patience
            work.say(f"stopped after epoch {done.epoch} of {spec.epochs}, nothing better in {patience}")
        if result.overfitting:
            work.say(result.overfitting.words)
        weights = save(best)
        return Outcome(
            fields={
                "training": result.model_dump(mode="json"),
                "sha256": {"weights": files.sha256_bytes(weights)},
                "wall": held,
            },
            files={"model.safetensors": weights, "history.json": files.to_json(_history(done))},
            summary=f"{result.selected_by} {result.validation_score:.3f} at epoch {result.selected_epoch}",
        )


def _source_settings(row: Row) -> dict[str, Any]:
    """Of the row that preparations start from, which may be another network."""
    source = row.source if needed(row.settings.training).prepare else None
    return {"source": source.settings.model_dump(mode="json", include={"model"})} if source else {}


def _run(row: Row) -> TrainRun:
    """How this machine trains it; a network of a study has a seed of its own."""
    run = run_settings().train
    return run.model_copy(update={"seed": row.network.seed}) if row.network else run


def _history(done: TrainingProgress) -> dict[str, list[float]]:
    """By epoch; where training was against an attack also the accuracy that it left, and that it and PGD left."""
    watched = {"trained": [a for a, _ in done.watched], "pgd": [b for _, b in done.watched]} if done.watched else {}
    return {"loss": done.losses, "score": done.scores, **watched}


step = Train()
