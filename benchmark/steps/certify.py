"""Step `certify`: certified l2 radii of one row, and the audit that tries to break them."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.components import certificate_file
from benchmark.steps.base import Outcome, Work
from benchmark.steps.evaluation import EvaluationStep, Subject, by_blocks

if TYPE_CHECKING:
    import torch


class Certify(EvaluationStep):
    """The column `certified_l2`, from which the Record's certified accuracies are counted."""

    declared_in = "settings.certificate"
    refusal = "{row} declares no certificate on {track}"

    @property
    def components(self) -> list[Path]:
        return [*self.row.method_files, certificate_file(self.declared.name)]

    def evaluate(self, work: Work, subject: Subject) -> Outcome:
        from benchmark.evaluation.audit import Audit
        from benchmark.evaluation.certified_radii import certificate_module, certified_radii
        from benchmark.records.accuracy import Certificate

        spec, size = self.declared, subject.batch_size
        model, images, labels = subject.model, subject.images, subject.labels
        module = certificate_module(spec.name)
        gap, bound = module.float32_gap(model, images, labels)
        if not math.isfinite(bound):
            raise BenchmarkError(
                f"{work.row.name}: {spec.name} has no finite bound of this network's margins or their rounding; "
                "nothing can be certified: leave the certificate out"
            )

        def certified(places: range) -> dict[str, torch.Tensor]:
            """Return radii (k,), and whether float32 and float64 verdicts differ. Raise if an attack breaks a ball."""
            block = slice(places.start, places.stop)
            radii = certified_radii(model, images[block], labels[block], spec, size)
            audit = Audit(model, images[block], labels[block], radii, work.row.name, places.start)
            return {"certified_l2": radii, "disagrees": audit.attack_balls(size)}

        columns = by_blocks(work, len(images), size, certified, "certified")
        radii = columns["certified_l2"]
        audit = Audit(model, images, labels, radii.to(subject.device), work.row.name).summary(
            partial(module.certify, **spec.parameters), int(columns["disagrees"].sum())
        )
        certificate = Certificate(
            name=spec.name, guarantee=module.guarantee(), parameters=spec.parameters,
            float32_gap=gap, float32_bound=bound, audit=audit,
        )  # fmt: skip
        return Outcome(
            columns={"certified_l2": radii},
            fields={"certificate": certificate.model_dump(mode="json")},
            summary=f"median certified l2 radius {float(radii.median()):.4f} over {len(labels)} images",
        )


step = Certify
