"""Step `measure`: a study's measures of one of its networks."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.specs.components import attack_file, certificate_file
from benchmark.specs.run_settings import run_settings
from benchmark.specs.study import MeasureSpec
from benchmark.steps.base import Outcome, Work
from benchmark.steps.evaluation import EvaluationStep, Subject
from benchmark.studies.checks import certificate_of, measure_files

if TYPE_CHECKING:
    import torch

    from benchmark.studies.measuring import Measured


class Measure(EvaluationStep):
    """The fields of `Run` (benchmark/records/study.py), and the packages that the measures need."""

    declared_in = "network"
    refusal = "{row} is no network of a study; `rvb study` measures those"
    searches = True

    @property
    def rules(self) -> dict[str, Any]:
        network, certificate = self.declared, self.row.settings.certificate
        return {
            "measures": [measure.model_dump(mode="json") for measure in network.measures],
            "certificate": certificate.model_dump(mode="json") if certificate else None,
            "images": network.images,
            "seed": network.seed,
            "engine": run_settings().evaluate.engine,
        }

    @property
    def components(self) -> list[Path]:
        row, files = self.row, {Path("benchmark/studies/own.py"), *self.row.method_files}
        for measure in self.declared.measures:
            if measure.attack:
                files.add(attack_file(measure.attack.attack))
            elif measure.measure == "certified":
                files.add(certificate_file(certificate_of(row.settings, measure).name))
            elif measure.is_function:
                files |= measure_files(row.submission.name, measure.measure)
        return sorted(files)

    def identity(self) -> dict[str, Any]:
        packages, left_out = _versions(self.declared.measures)
        return super().identity() | {"packages": packages, "left_out": left_out}

    def companion(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return the process that takes the measures that are functions."""
        from benchmark.studies import own

        return own.measuring(self.row, device)

    def evaluate(self, work: Work, subject: Subject) -> Outcome:
        from benchmark.attacks.internals import internals
        from benchmark.studies import measuring as measures

        network, measured = self.declared, measures.Measured()
        packages, left_out = _versions(network.measures)
        for measure in network.measures:
            if measure.label in left_out:
                work.say(f"{measure.label} is left out: {left_out[measure.label]}")
            else:
                measured.add(self._take(measure, work, subject))
        fields = {
            "parameters": internals(subject.model, subject.images[:1]).parameters,
            "values": measured.values,
            "x": measured.x,
            "verdicts": measured.verdicts,
            "points": {label: points.model_dump(mode="json") for label, points in measured.points.items()},
            "left_out": left_out,
            "packages": packages,
        }
        numbers = [f"{label} {value:.3f}" for label, value in measured.values.items() if isinstance(value, float)]
        summary = f"{network.cell}, seed {network.seed}: {', '.join(numbers)}"
        return Outcome(measured.columns, fields, summary=summary)

    def _take(self, measure: MeasureSpec, work: Work, subject: Subject) -> Measured:
        from benchmark.attacks.prediction import predict
        from benchmark.evaluation.certified_radii import certified_radii
        from benchmark.evaluation.run_attack import run_attack
        from benchmark.studies import measuring as measures

        used, size = slice(self.declared.images), subject.batch_size
        model, images, labels = subject.model, subject.images[used], subject.labels[used]
        if measure.attack:
            attacked = slice(self.row.track.evaluation.attacked)
            _, after = run_attack(
                model, images[attacked], labels[attacked], measure.attack, batch_size=size,
                checkpoint=work.blocks / f"{measure.attack.id}.safetensors", engine=work.settings["engine"],
            )  # fmt: skip
            return measures.accuracy(measure.label, after.correct)
        if measure.measure == "clean":
            return measures.accuracy(measure.label, predict(model, images, labels, size).correct)
        if measure.measure == "certified":
            radii = certified_radii(model, images, labels, certificate_of(self.row.settings, measure), size)
            return measures.certified(measure, predict(model, images, labels, size).correct, radii)
        return subject.companion(measure, images, labels)


def _versions(measures: Iterable[MeasureSpec]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the versions of the packages that measures need, and by label why a measure is left out.

    No package is imported: a study may name any, and this is the evaluator's process.
    """
    installed, left_out = {}, {}
    for measure in measures:
        if name := measure.needs:
            if _is_installed(name):
                distributions = packages_distributions().get(name)
                installed[name] = version(distributions[0]) if distributions else "unknown"
            else:
                left_out[measure.label] = f"the package {name} is not installed here"
    return installed, left_out


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ValueError:  # a module of this process without a place of its own, such as __main__
        return False


step = Measure
