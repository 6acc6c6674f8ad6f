"""Stage `smooth`: the smoothed version of one row, certified by sampling (Cohen et al. 2019)."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from benchmark.loading.rows import Row
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.smoothing import SmoothingSpec
from benchmark.stages.base import Outcome, Work
from benchmark.stages.evaluation import EvaluationStage, Subject

if TYPE_CHECKING:
    import torch

CHUNK = 25  # images between two checkpoints
SPARES = 1 + 20  # one is asked again what voted, each of the others one copy an image under new noise


class Smooth(EvaluationStage):
    """Columns `smoothed_*`: class, radius and the counts from which they follow."""

    name = "smooth"
    order = 40
    typical_seconds = 12
    spares = SPARES

    def applies(self, row: Row) -> bool:
        """The open division has no smoothed radii: nobody can tell whether the votes of a random model are independent."""
        return row.track.smoothing is not None and row.submission.division == "closed"

    def refuse(self, row: Row, name: str) -> BenchmarkError:
        if row.track.smoothing:
            return BenchmarkError(f"{row.name}: only rows of the closed division are smoothed")
        return BenchmarkError(f"track {row.track.name} declares no smoothing")

    def rules(self, row: Row, name: str) -> dict[str, Any]:
        return {"smoothing": _rules(row).model_dump(mode="json"), "radii": list(row.track.certified_radii)}

    def evaluate(self, work: Work, subject: Subject) -> Outcome:
        import pyarrow as pa

        from benchmark.certificates.smoothing import guarantee
        from benchmark.evaluation.smoothed import smoothed
        from benchmark.evaluation.vote_checks import check_radii

        rules = _rules(work.row)
        columns = smoothed_columns(work, subject, rules)
        if subject.spares:
            check_radii(
                subject.spares[1:], subject.images, columns["smoothed_prediction"], columns["smoothed_l2"],
                sigma=rules.sigma, batch_size=subject.batch_size, row=work.row.name,
            )  # fmt: skip
        evidence = pa.table({name: c.numpy() for name, c in {"label": subject.labels.cpu(), **columns}.items()})
        words = guarantee(rules.sigma, rules.alpha)
        result = smoothed(evidence, work.row.track.certified_radii, rules, words)
        return Outcome(
            columns,
            {"smoothed": result.model_dump(mode="json")},
            summary=f"the smoothed version is right on {result.clean.count} of {result.clean.n} images, the rest wrong or "
            "undecided",
        )


def smoothed_columns(work: Work, subject: Subject, rules: SmoothingSpec) -> dict[str, torch.Tensor]:
    """The evidence by column, each (n,): what `Smoothed` holds; resumed after a kill."""
    import torch
    from safetensors.torch import load_file, save

    from benchmark.certificates.smoothing import smooth
    from benchmark.evaluation.vote_checks import KEPT, Witness, check_votes

    checkpoint, images = work.scratch / "checkpoint.safetensors", subject.images
    columns = load_file(checkpoint) if checkpoint.exists() else {}
    done = len(columns["smoothed_l2"]) if columns else 0
    with subject.spares[0]() if subject.spares else nullcontext() as again:
        for start in range(done, len(images), CHUNK):
            chunk = images[start : start + CHUNK]
            places = range(start, start + len(chunk))
            witness = Witness(KEPT * len(chunk))
            found = smooth(
                subject.model,
                chunk,
                places,
                work.row.track.certified_radii,
                **rules.model_dump(),
                batch_size=subject.batch_size,
                observe=witness,
            )
            if again is not None:
                check_votes(again, witness, batch_size=subject.batch_size, row=work.row.name)
            new = {f"smoothed_{'l2' if name == 'radius' else name}": tensor for name, tensor in vars(found).items()}
            columns = {name: torch.cat([columns[name], tensor]) if columns else tensor for name, tensor in new.items()}
            files.write(checkpoint, save({name: tensor.contiguous() for name, tensor in columns.items()}))
            work.say(f"smoothed {places.stop} of {len(images)} images")
    return columns


def _rules(row: Row) -> SmoothingSpec:
    assert row.track.smoothing is not None  # the stage applies
    return row.track.smoothing


stage = Smooth()
