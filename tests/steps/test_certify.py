"""The stage that certifies: what it refuses."""

from __future__ import annotations

import math

import pytest
import tiny_linear_row
from stages import run_stage

from benchmark.certificates import lipschitz
from benchmark.runtime.errors import BenchmarkError


@pytest.mark.slow
def test_a_certificate_that_bounds_no_rounding_is_refused_in_words(linear_row, monkeypatch) -> None:
    path = linear_row.root / "submissions/Tiny2026Linear/submission.yaml"
    path.write_text(path.read_text() + "        certificate: {name: lipschitz}\n")
    monkeypatch.setattr(lipschitz, "float32_gap", lambda *_: (0.0, math.inf))
    with pytest.raises(BenchmarkError, match="nothing can be certified: leave the certificate out") as raised:
        run_stage("certify", *tiny_linear_row.NAMES)
    assert "\n" not in str(raised.value)
