"""Evidence to what each number of a Record counts, image by image."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from benchmark.evaluation.evidence import attack_ids, attacked, column, unbroken
from benchmark.results.per_image import PerImage, contradictions
from benchmark.results.record import Record
from benchmark.runtime.errors import BenchmarkError


def per_image(evidence: pa.Table, record: Record) -> PerImage:
    """
    Raises:
        BenchmarkError: a number of the Record is not the sum over its images.
    """
    clean = column(evidence, "clean_margin") > 0
    scores = {"clean": clean}
    scores |= {f"robust {one.threat.label}": unbroken(evidence, one.threat) for one in record.robust}
    if record.division == "closed":  # a random model has another clean pass in every stage: see evidence.merge
        of_attacks = clean[: attacked(evidence)]
        scores |= {name: of_attacks & ~column(evidence, f"{name}:success") for name in attack_ids(evidence)}
    radii = {}
    if record.certified:
        radii["certified"] = column(evidence, "certified_l2")
        scores |= {
            f"certified {r.threat.label}": clean & (radii["certified"] >= r.threat.eps) for r in record.certified
        }
    if record.smoothed:
        radii["smoothed"] = column(evidence, "smoothed_l2")
        right = column(evidence, "smoothed_prediction") == column(evidence, "label")
        scores["smoothed clean"] = right
        scores |= {
            f"smoothed {r.threat.label}": right & (radii["smoothed"] >= r.threat.eps) for r in record.smoothed.certified
        }
    if record.corrupted:
        severities = record.corrupted.rules.severities
        scores |= {
            f"corrupted: {one.name}": np.sum(
                [column(evidence, f"corrupted {one.name} {s}") for s in severities], axis=0
            )
            for one in record.corrupted.corruptions
        }
    found = PerImage(
        row=record.row,
        scores={name: "".join(map(str, np.asarray(score).astype(int))) for name, score in scores.items()},
        radii={name: tuple(values.tolist()) for name, values in radii.items()},
    )
    if wrong := contradictions(record, found):
        raise BenchmarkError(f"{record.row}: {wrong[0]}; nothing is published")
    return found
