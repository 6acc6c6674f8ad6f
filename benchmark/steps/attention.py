"""Step `attention`: one row's clean accuracy with uniform averaging in place of attention, and with nothing.

Of a network in this process, such as one rebuilt from its description, also with its mean pattern over training images and
with another image's.
"""

from __future__ import annotations

from typing import Any

from benchmark.steps.base import Outcome, Work
from benchmark.steps.evaluation import EvaluationStep, Subject


class Attention(EvaluationStep):
    """A column for each replacement: the predictions of the changed network. Nothing for a network without attention."""

    spares = 0  # asks about clean images only

    @property
    def rules(self) -> dict[str, Any]:
        return {}

    def evaluate(self, work: Work, subject: Subject) -> Outcome:
        import pyarrow as pa
        import torch

        from benchmark.attacks import replaced_attention as replaced
        from benchmark.data.tensors import training_images
        from benchmark.evaluation.evidence import ATTENTION_COLUMNS, PATTERN_COLUMNS, PATTERN_IMAGES, without_attention

        columns = {}
        for weights, name in ATTENTION_COLUMNS.items():
            torch.manual_seed(work.row.track.evaluation.seed)  # an open model may draw noise
            predicted = replaced.predictions_with(weights, subject.model, subject.images, subject.batch_size)
            if predicted is None:
                return Outcome(summary="no attention found in it")
            columns[name] = predicted
        size = work.row.track.evaluation.batch_size  # on every device: another image's patterns are of its batch
        if replaced.patterns(subject.model, subject.images[:size]):
            training = training_images(work.row.data, PATTERN_IMAGES).to(subject.device)
            means = replaced.mean_patterns(subject.model, training, size)
            for given, name in zip((means, None), PATTERN_COLUMNS.values(), strict=True):
                columns[name] = replaced.predictions_with_patterns(given, subject.model, subject.images, size)
        seen = {**columns, "label": subject.labels, "clean_prediction": subject.clean.prediction}
        result = without_attention(pa.table({name: values.cpu().numpy() for name, values in seen.items()}))
        return Outcome(
            columns,
            {"attention": result.model_dump(mode="json")},
            summary=f"right on {result.uniform.clean.count} images with uniform attention, {result.none.clean.count} without",
        )


step = Attention
