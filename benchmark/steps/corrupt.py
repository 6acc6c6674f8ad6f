"""Step `corrupt`: one row on corrupted copies of the evaluation images (Hendrycks and Dietterich 2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmark.specs.track import CorruptionSpec
from benchmark.steps.base import Outcome, Work
from benchmark.steps.evaluation import EvaluationStep, Subject, by_blocks

if TYPE_CHECKING:
    import torch

BLOCK = 25  # images between two checkpoints


class Corrupt(EvaluationStep):
    """Columns `corrupted <name> <severity>`: whether the model classifies that copy correctly; a tie counts as wrong."""

    declared_in = "track.corruptions"
    refusal = "track {track} declares no corruptions"

    def versions(self) -> dict[str, str]:
        from benchmark.data.corruptions import versions

        return super().versions() | versions()

    def evaluate(self, work: Work, subject: Subject) -> Outcome:
        import pyarrow as pa

        from benchmark.data.corruptions import PARAMETERS, versions
        from benchmark.evaluation.evidence import corrupted

        rules = self.declared
        right = corrupted_columns(work, subject, rules)
        evidence = pa.table({name: verdicts.numpy() for name, verdicts in right.items()})
        result = corrupted(evidence, rules, PARAMETERS, versions())
        counted, n = sum(int(column.sum()) for column in right.values()), len(subject.labels)
        return Outcome(
            right,
            {"corrupted": result.model_dump(mode="json")},
            summary=f"right on {counted} of {len(right) * n} corrupted images",
        )


def corrupted_columns(work: Work, subject: Subject, rules: CorruptionSpec) -> dict[str, torch.Tensor]:
    """Return the evidence by column, bool (n,) each; resumed after a kill."""
    import torch

    from benchmark.attacks.prediction import predict
    from benchmark.data.corruptions import corrupt

    pixels = subject.images.cpu().numpy()

    def verdicts(places: range) -> dict[str, torch.Tensor]:
        block = slice(places.start, places.stop)
        torch.manual_seed(rules.seed + places.start)  # an open model may draw noise
        right = {}
        for name, severity in rules.cells:
            copies = torch.from_numpy(corrupt(pixels[block], places, name, severity, rules.seed))
            predictions = predict(subject.model, copies.to(subject.device), subject.labels[block], subject.batch_size)
            right[f"corrupted {name} {severity}"] = predictions.correct
        return right

    return by_blocks(work, len(subject.images), BLOCK, verdicts, "corrupted")


step = Corrupt
