"""The evidence of corrupted images, counted."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from benchmark.evaluation.evidence import column
from benchmark.evaluation.proportion import mean_proportion, proportion
from benchmark.results.beside import CorruptionAccuracy, CorruptionResult
from benchmark.results.proportion import Proportion
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.track import CorruptionSpec


def corrupted(evidence: pa.Table, rules: CorruptionSpec, parameters: str, versions: dict[str, str]) -> CorruptionResult:
    """Accuracy on the corrupted copies: of each corruption and severity, and the means over them.

    Raises:
        BenchmarkError: a corruption or severity of the rules lacks its column, or an image its verdict.
    """
    right = {cell: _verdicts(evidence, f"corrupted {cell[0]} {cell[1]}") for cell in rules.cells}

    def mean(*cells: tuple[str, int]) -> Proportion:
        return mean_proportion(np.stack([right[cell] for cell in cells]))

    return CorruptionResult(
        rules=rules,
        parameters=parameters,
        versions=versions,
        accuracy=mean(*rules.cells),
        severities=tuple(mean(*((name, severity) for name in rules.names)) for severity in rules.severities),
        corruptions=tuple(
            CorruptionAccuracy(
                name=name,
                severities=tuple(proportion(right[name, severity]) for severity in rules.severities),
                mean=mean(*((name, severity) for severity in rules.severities)),
            )
            for name in rules.names
        ),
    )


def _verdicts(evidence: pa.Table, name: str) -> np.ndarray:
    if name not in evidence.column_names or evidence[name].null_count:
        raise BenchmarkError(f"the evidence column {name!r} is missing or lacks an image; run `rvb repro` to build it")
    return column(evidence, name)
