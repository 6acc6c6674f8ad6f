"""Step `formula`: the values of published formulas that are no bounds, shown beside the certified radii of one row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmark.specs.components import certificate_file
from benchmark.steps.base import Outcome, Work
from benchmark.steps.evaluation import EvaluationStep, Subject


class Formula(EvaluationStep):
    """Shares of images by formula and radius, only in the Record's `measured`: no accuracy is counted from them."""

    declared_in = "settings.unsound_formulas"
    refusal = "{row} names no `unsound_formulas` on {track}"

    @property
    def rules(self) -> dict[str, Any]:
        return {"formulas": list(self.declared), "radii": list(self.row.track.certified_radii)}

    @property
    def components(self) -> list[Path]:
        return [*self.row.method_files, certificate_file("unsound_paper_formula")]

    def evaluate(self, work: Work, subject: Subject) -> Outcome:
        from benchmark.certificates.unsound_paper_formula import unsound_radius

        shown, radii = {}, work.row.track.certified_radii
        for name in self.declared:
            result = unsound_radius(name, subject.model, subject.images, subject.labels)
            reached = {f"{radius:g}": float((result.value >= radius).double().mean()) for radius in radii}
            shown[name] = {"formula": result.formula, "reached": reached}
        return Outcome(fields={"unsound": shown}, summary="published formulas, which certify nothing, are computed")


step = Formula
