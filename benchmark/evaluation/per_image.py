"""Which images each number of a Record counts, from the evidence that stands beside it. No torch here."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from benchmark.evaluation.evidence import attack_ids, column, unbroken
from benchmark.results.record import Record


def verdicts(evidence: pa.Table, record: Record) -> dict[str, np.ndarray]:
    """(n,) bool by the number's name: the headline's, and each attack's. Numbers over copies of images are left out."""
    correct = column(evidence, "clean_margin") > 0
    found = {"clean": correct}
    found |= {f"robust {one.threat.label}": unbroken(evidence, one.threat) for one in record.robust}
    found |= {
        f"certified {one.threat.label}": correct & (column(evidence, "certified_l2") >= one.threat.eps)
        for one in record.certified
    }
    if record.smoothed:
        right = column(evidence, "smoothed_prediction") == column(evidence, "label")
        found["smoothed clean"] = right
        found |= {
            f"smoothed {one.threat.label}": right & (column(evidence, "smoothed_l2") >= one.threat.eps)
            for one in record.smoothed.certified
        }
    return found | {name: correct & ~column(evidence, f"{name}:success") for name in attack_ids(evidence)}
