"""What stages that judge a trained model share: the model, the evaluation images, the clean verdicts beside their own."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from benchmark.loading.rows import Row
from benchmark.loading.run_settings import run_settings
from benchmark.stages.base import Outcome, Stage, Work

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Subject:
    """A row's model, frozen and in evaluation mode, with the images (n, c, h, w) and labels (n,) that it is judged on."""

    model: torch.nn.Module
    images: torch.Tensor
    labels: torch.Tensor
    batch_size: int

    @property
    def device(self) -> torch.device:
        return self.images.device


class EvaluationStage(Stage):
    """A stage on trained weights. Its evidence carries label, clean prediction and clean margin of each image too."""

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
        from benchmark.loading.trained import evaluation_images, trained_model
        from benchmark.runtime.torch_setup import set_up
        from benchmark.verdicts.prediction import predict

        device = set_up(work.settings["device"])
        images, labels = evaluation_images(work.row, device)
        subject = Subject(trained_model(work.row, device), images, labels, work.row.track.evaluation.batch_size)
        outcome = self.evaluate(work, subject)
        clean = predict(subject.model, images, labels, subject.batch_size)
        shared = {"label": labels, "clean_prediction": clean.prediction, "clean_margin": clean.margin}
        return replace(outcome, columns={**shared, **outcome.columns})
