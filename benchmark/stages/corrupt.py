"""Stage `corrupt`: one row on corrupted copies of the evaluation images (Hendrycks and Dietterich 2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmark.loading.rows import Row
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.corruptions import CorruptionSpec
from benchmark.stages.base import Outcome, Work
from benchmark.stages.evaluation import EvaluationStage, Subject

if TYPE_CHECKING:
    import torch

CHUNK = 25  # images between two checkpoints


class Corrupt(EvaluationStage):
    """Columns `corrupted <name> <severity>`: whether the model is right on that copy; a tie counts as wrong."""

    name = "corrupt"
    order = 60
    typical_seconds = 60

    def applies(self, row: Row) -> bool:
        return row.track.corruptions is not None

    def refuse(self, row: Row, name: str) -> BenchmarkError:
        return BenchmarkError(f"track {row.track.name} declares no corruptions")

    def rules(self, row: Row, name: str) -> dict[str, Any]:
        return {"corruptions": _rules(row).model_dump(mode="json")}

    def versions(self) -> dict[str, str]:
        from benchmark.data.corruptions import versions

        return super().versions() | versions()

    def evaluate(self, work: Work, subject: Subject) -> Outcome:
        import pyarrow as pa

        from benchmark.data.corruptions import PARAMETERS, versions
        from benchmark.evaluation.corrupted import corrupted

        rules = _rules(work.row)
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
    """The evidence by column, (n,) bool each; resumed after a kill."""
    import torch
    from safetensors.torch import load_file, save

    from benchmark.data.corruptions import corrupt
    from benchmark.verdicts.prediction import predict

    checkpoint, images = work.scratch / "checkpoint.safetensors", subject.images
    columns = load_file(checkpoint) if checkpoint.exists() else {}
    done = len(next(iter(columns.values()))) if columns else 0
    pixels = images.cpu().numpy()
    for start in range(done, len(images), CHUNK):
        chunk, places = slice(start, start + CHUNK), range(start, min(start + CHUNK, len(images)))
        torch.manual_seed(rules.seed + start)  # an open model may draw noise of its own
        new = {}
        for name, severity in rules.cells:
            copies = torch.from_numpy(corrupt(pixels[chunk], places, name, severity, rules.seed)).to(images.device)
            judged = predict(subject.model, copies, subject.labels[chunk], subject.batch_size)
            new[f"corrupted {name} {severity}"] = judged.correct.cpu()
        columns = {name: torch.cat([columns[name], right]) if columns else right for name, right in new.items()}
        files.write(checkpoint, save({name: tensor.contiguous() for name, tensor in columns.items()}))
        work.say(f"corrupted {places.stop} of {len(images)} images")
    return columns


def _rules(row: Row) -> CorruptionSpec:
    assert row.track.corruptions is not None  # the stage applies
    return row.track.corruptions


stage = Corrupt()
