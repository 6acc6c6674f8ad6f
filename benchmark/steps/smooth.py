"""Step `smooth`: the smoothed version of one row, certified by sampling (Cohen et al. 2019)."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.rows import Row
from benchmark.specs.track import SmoothingSpec
from benchmark.steps.base import Outcome, Work
from benchmark.steps.evaluation import EvaluationStep, Subject, ask_again, by_blocks

if TYPE_CHECKING:
    import torch

BLOCK = 25  # images between two checkpoints
COPIES = 10  # of an image under new noise, each in a process of its own
ASKED_AGAIN = 500  # copies of a block's images


class Smooth(EvaluationStep):
    """Columns `smoothed_*`: the class, the radius, and the counts from which they follow."""

    declared_in = "track.smoothing"
    searches = True
    spares = 2 + COPIES  # for the votes, for the other questions, and for copies

    @classmethod
    def applies(cls, row: Row) -> bool:
        """The open division has no smoothed radii: nobody can tell whether the votes of a random model are independent."""
        return super().applies(row) and row.submission.division == "closed"

    @classmethod
    def refuse(cls, row: Row, name: str) -> BenchmarkError:
        if row.track.smoothing:
            return BenchmarkError(f"{row.name}: only rows of the closed division are smoothed")
        return BenchmarkError(f"track {row.track.name} declares no smoothing")

    @property
    def rules(self) -> dict[str, Any]:
        return super().rules | {"radii": list(self.row.track.certified_radii)}

    def evaluate(self, work: Work, subject: Subject) -> Outcome:
        import pyarrow as pa

        from benchmark.certificates.smoothing import guarantee
        from benchmark.evaluation.asked_again import check_radii
        from benchmark.evaluation.evidence import smoothed

        rules = self.declared
        columns = smoothed_columns(work, subject, rules)
        others = [subject.spares.pop() if subject.asked else (lambda: nullcontext(subject.model)) for _ in range(COPIES)]
        check_radii(
            others, subject.images, columns["smoothed_prediction"], columns["smoothed_l2"],
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
    """Return the evidence by column, the fields of `Smoothed`; resumed after a kill."""
    from benchmark.attacks.engine.slots import fuller
    from benchmark.attacks.internals import internals
    from benchmark.certificates.smoothing import smooth

    size = subject.batch_size
    together = subject.together or fuller(size, subject.images, internals(subject.model, subject.images[:size]).flops)
    with subject.spares.pop()() if subject.asked else nullcontext() as again:

        def votes(places: range) -> dict[str, torch.Tensor]:
            result = smooth(
                subject.model,
                subject.images[places.start : places.stop],
                places,
                work.row.track.certified_radii,
                **rules.model_dump(),
                batch_size=together,
            )
            if again is not None:
                ask_again(work, subject, ASKED_AGAIN, again)
            return {f"smoothed_{'l2' if name == 'radius' else name}": column for name, column in vars(result).items()}

        return by_blocks(work, len(subject.images), BLOCK, votes, "smoothed")


step = Smooth
