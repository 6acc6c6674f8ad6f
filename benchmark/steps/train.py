"""Step `train`: one row's weights, trained here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmark.runtime import files
from benchmark.specs.components import recipe_files
from benchmark.specs.rows import Row
from benchmark.specs.run_settings import TrainRun, run_settings
from benchmark.steps.base import Outcome, Step, Work


class Train(Step):
    """model.safetensors and history.json. Fine-tuning starts from another row's weights."""

    declared_in = "settings.training"
    refusal = "{row} has weights that were trained elsewhere; run `rvb step pretrained {row}`"

    @property
    def slow(self) -> list[str]:
        return ["benchmark.sandbox.training", "torch._dynamo"]

    @property
    def reads(self) -> list[Path]:
        return [self.row.data, *([self.row.start] if self.row.start else [])]

    @property
    def settings(self) -> dict[str, Any]:
        run, source = run_settings().train, self._source
        if self.row.network:  # of a study, with a seed of its own
            run = run.model_copy(update={"seed": self.row.network.seed})
        more = {"source": source.settings.model_dump(mode="json", include={"model"})} if source else {}
        return super().settings | {"run": run.model_dump(mode="json"), **more}

    @property
    def components(self) -> list[Path]:
        source = self._source.method_files if self._source else []
        return [*self.row.method_files, *source, *recipe_files(self.declared, self.row.method.parent)]

    @property
    def _source(self) -> Row | None:
        """The row that preparations start from, which may be another network."""
        return self.row.source if self.declared.prepare else None

    def run(self, work: Work) -> Outcome:
        from safetensors.torch import save

        from benchmark.sandbox.submitted import in_force, in_words
        from benchmark.sandbox.training import fit_sandboxed

        spec, run = self.declared, TrainRun.model_validate(work.settings["run"])
        wall = in_words(in_force())  # read before the work: params.yaml may change meanwhile

        def on_epoch(epoch: int, score: float) -> None:
            work.clock.lap()
            if epoch % max(1, spec.epochs // 4) == 0:
                work.say(f"epoch {epoch} of {spec.epochs}, score {score:.3f}")

        place = work.scratch / "training"  # the submitted code may write there: the evaluator trusts nothing in it
        place.mkdir(exist_ok=True)
        best, done, result, memory = fit_sandboxed(work.row, run, place, on_epoch, work.say)
        work.clock.memory(memory)
        if done.epoch < spec.epochs:
            patience = spec.selection.patience
            work.say(f"stopped after epoch {done.epoch} of {spec.epochs}, nothing better in {patience}")
        if result.overfitting:
            work.say(result.overfitting.words)
        history = {"loss": done.losses, "score": done.scores}  # by epoch
        if done.watched:  # the accuracies under the attack trained on and under PGD
            history |= {"trained": [a for a, _ in done.watched], "pgd": [b for _, b in done.watched]}
        weights = save(best)
        return Outcome(
            fields={
                "training": result.model_dump(mode="json"),
                "sha256": {"weights": files.sha256_bytes(weights)},
                "wall": wall,
            },
            files={"model.safetensors": weights, "history.json": files.to_json(history)},
            summary=f"{result.selected_by} {result.validation_score:.3f} at epoch {result.selected_epoch}",
        )


step = Train
