"""Step `measure`: take a study's measures of one of its networks."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.loading.components import attack_file, certificate_file
from benchmark.loading.rows import Row
from benchmark.loading.run_settings import run_settings
from benchmark.specs.certificate import CertificateSpec
from benchmark.specs.study import MeasureSpec
from benchmark.steps.base import Outcome, Work, needed
from benchmark.steps.evaluation import EvaluationStep, Subject
from benchmark.studies import checks

if TYPE_CHECKING:
    import torch

    from benchmark.studies.measures import Measured


class Measure(EvaluationStep):
    """The fields are those of `Run` (benchmark/results/study.py), and the packages that the measures need."""

    name = "measure"
    refusal = "{row} is no network of a study; `rvb study` measures those"
    searches = True

    def applies(self, row: Row) -> bool:
        return row.network is not None

    def rules(self, row: Row, name: str) -> dict[str, Any]:
        network, certificate = needed(row.network), row.settings.certificate
        return {
            "measures": [measure.model_dump(mode="json") for measure in network.measures],
            "certificate": certificate.model_dump(mode="json") if certificate else None,
            "images": network.images,
            "seed": network.seed,
            "engine": run_settings().evaluate.engine,
        }

    def components(self, row: Row, name: str) -> list[Path]:
        files = {Path("benchmark/studies/own.py"), *row.method_files}
        for measure in needed(row.network).measures:
            if measure.attack:
                files.add(attack_file(measure.attack.attack))
            elif measure.measure == "certified":
                files.add(certificate_file(checks.certificate_of(row.settings, measure)[0]))
            elif measure.measure != "clean":
                files |= checks.measure_files(row.submission.name, measure.measure)
        return sorted(files)

    def identity(self, row: Row, name: str) -> dict[str, Any]:
        from benchmark.studies import measures

        packages, left_out = measures.versions(needed(row.network).measures)
        return super().identity(row, name) | {"packages": packages, "left_out": left_out}

    def companion(self, row: Row, name: str, device: torch.device) -> AbstractContextManager[Any]:
        """Return the process that takes the measures that are functions."""
        from benchmark.studies import own

        return own.measuring(row, device)

    def evaluate(self, work: Work, subject: Subject) -> Outcome:
        from benchmark.results.points import Points
        from benchmark.studies import measures
        from benchmark.verdicts.internals import internals

        network, measured = needed(work.row.network), measures.Measured()
        packages, left_out = measures.versions(network.measures)
        for measure in network.measures:
            if measure.label in left_out:
                work.say(f"{measure.label} is left out: {left_out[measure.label]}")
            else:
                measured.add(_measured(measure, work, subject))
        points: dict[str, Points] = measured.points
        fields = {
            "parameters": internals(subject.model, subject.images[:1]).parameters,
            "values": measured.values,
            "x": measured.x,
            "verdicts": measured.verdicts,
            "points": {label: found.model_dump(mode="json") for label, found in points.items()},
            "left_out": left_out,
            "packages": packages,
        }
        numbers = [f"{label} {value:.3f}" for label, value in measured.values.items() if isinstance(value, float)]
        summary = f"{network.cell}, seed {network.seed}: {', '.join(numbers)}"
        return Outcome(measured.columns, fields, summary=summary)


def _measured(measure: MeasureSpec, work: Work, subject: Subject) -> Measured:
    from benchmark.evaluation.certified_radii import certified_radii
    from benchmark.studies import measures

    row, size, network = work.row, subject.batch_size, needed(work.row.network)
    model, images, labels = subject.model, subject.images[: network.images], subject.labels[: network.images]
    if measure.measure == "clean":
        return measures.clean(model, images, labels, measure.label, size)
    if measure.attack:
        attacked = slice(row.track.evaluation.attacked)
        return measures.attacked(
            model, images[attacked], labels[attacked], measure, batch_size=size,
            checkpoint=work.blocks / f"{measure.attack.id}.safetensors", engine=work.settings["engine"],
        )  # fmt: skip
    if measure.measure == "certified":
        name, parameters = checks.certificate_of(row.settings, measure)
        radii = partial(certified_radii, spec=CertificateSpec(name=name, parameters=parameters), batch_size=size)
        return measures.certified(model, images, labels, measure, size, radii)
    return subject.companion(measure, images, labels)


step = Measure()
