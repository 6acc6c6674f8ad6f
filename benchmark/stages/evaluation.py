"""What stages that judge a trained model share: the model, the evaluation images, the clean verdicts beside their own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from benchmark.loading.rows import Row
from benchmark.loading.run_settings import run_settings
from benchmark.stages.base import Outcome, Stage, Work

if TYPE_CHECKING:
    import torch

    from benchmark.loading.judged import Spare
    from benchmark.verdicts.prediction import Predictions


@dataclass(frozen=True)
class Subject:
    """A row's network (loading/judged.py) with the images (n, c, h, w) and labels (n,) that it is judged on, and what it
    predicts for them when clean. `spares` are the same model in processes that were asked nothing yet, as many as the stage
    wants; none where the network was rebuilt.
    """

    model: torch.nn.Module
    images: torch.Tensor
    labels: torch.Tensor
    batch_size: int
    clean: Predictions
    spares: Sequence[Spare] = ()

    @property
    def first_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[: self.batch_size], self.labels[: self.batch_size]

    @property
    def device(self) -> torch.device:
        return self.images.device


class EvaluationStage(Stage):
    """A stage on trained weights. Its evidence carries label, clean prediction and clean margin of each image too, of
    those as well that a stage which `attacks` does not see.
    """

    spares: int = 0  # processes with the row's own model that the stage wants beside the judged one
    attacks: bool = False  # so that it sees the track's attacked images alone

    @abstractmethod
    def rules(self, row: Row, name: str) -> dict[str, Any]:
        """The settings that are this stage's own."""

    @abstractmethod
    def evaluate(self, work: Work, subject: Subject) -> Outcome: ...

    def settings(self, row: Row, name: str) -> dict[str, Any]:
        return {
            "data": row.track.data.model_dump(mode="json", exclude={"sha256", "path"}),
            "evaluation": row.track.evaluation.model_dump(mode="json"),
            "device": run_settings().evaluate.device,
            "model": row.settings.model,
            **self.rules(row, name),
        }

    def run(self, work: Work) -> Outcome:
        import torch

        from benchmark.loading.judged import judged_model, spare_models
        from benchmark.loading.trained import evaluation_images
        from benchmark.runtime.torch_setup import set_up
        from benchmark.verdicts.prediction import predict

        device, rules = set_up(work.settings["device"]), work.row.track.evaluation
        # the row's process starts before an image or a label is read, of which it would else have a copy
        with (
            judged_model(work.row, device) as judged,
            spare_models(work.row, device, 0 if judged.rebuilt else self.spares) as spares,
        ):
            images, labels = evaluation_images(work.row, device)
            judged.confirm(images, rules.batch_size, work.row.name)
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                torch.manual_seed(
                    rules.seed
                )  # an open model may draw noise of its own: every stage sees the same clean pass
                clean = predict(judged.model, images, labels, rules.batch_size)
            seen = slice(rules.attacked if self.attacks else None)
            of_clean = replace(clean, prediction=clean.prediction[seen], margin=clean.margin[seen])
            subject = Subject(judged.model, images[seen], labels[seen], rules.batch_size, of_clean, spares)
            outcome = self.evaluate(work, subject)
        shared = {"label": labels, "clean_prediction": clean.prediction, "clean_margin": clean.margin}
        fields = {**outcome.fields, "wall": judged.wall}
        return replace(outcome, columns={**shared, **outcome.columns}, fields=fields)
