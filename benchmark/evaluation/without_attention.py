"""The evidence of networks whose attention was replaced, counted."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa

from benchmark.evaluation.evidence import column
from benchmark.evaluation.proportion import proportion
from benchmark.results.beside import AttentionResult, WithoutAttention

COLUMNS: dict[Literal["uniform", "none"], str] = {
    "uniform": "uniform_attention_prediction",
    "none": "no_attention_prediction",
}  # of classes; -1 where the two first tie or logits are not finite


def without_attention(evidence: pa.Table) -> AttentionResult:
    return AttentionResult(uniform=_counted(evidence, COLUMNS["uniform"]), none=_counted(evidence, COLUMNS["none"]))


def _counted(evidence: pa.Table, name: str) -> WithoutAttention:
    predicted = column(evidence, name)
    changed = int((predicted != column(evidence, "clean_prediction")).sum())
    return WithoutAttention(clean=proportion(predicted == column(evidence, "label")), changed=changed)
