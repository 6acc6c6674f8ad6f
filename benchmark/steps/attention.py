"""Step `attention`: what is left of one row's clean accuracy with uniform averaging for attention, and with nothing."""

from __future__ import annotations

from typing import Any

from benchmark.steps.base import Outcome, Work
from benchmark.steps.evaluation import EvaluationStep, Subject


class Attention(EvaluationStep):
    """A column a replacement: what the network so changed predicts. None for a network in which no attention is found."""

    spares = 0  # it asks about the clean images alone

    @property
    def rules(self) -> dict[str, Any]:
        return {}

    def evaluate(self, work: Work, subject: Subject) -> Outcome:
        import pyarrow as pa
        import torch

        from benchmark.attacks.replaced_attention import predictions_with
        from benchmark.evaluation.evidence import ATTENTION_COLUMNS, without_attention

        found = {}
        for weights, name in ATTENTION_COLUMNS.items():
            torch.manual_seed(work.row.track.evaluation.seed)  # an open model may draw noise of its own
            predicted = predictions_with(weights, subject.model, subject.images, subject.batch_size)
            if predicted is None:
                return Outcome(summary="no attention found in it")
            found[name] = predicted
        seen = {**found, "label": subject.labels, "clean_prediction": subject.clean.prediction}
        result = without_attention(pa.table({name: values.cpu().numpy() for name, values in seen.items()}))
        return Outcome(
            found,
            {"attention": result.model_dump(mode="json")},
            summary=f"right on {result.uniform.clean.count} images with uniform attention, {result.none.clean.count} without",
        )


step = Attention
