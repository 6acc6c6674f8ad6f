"""A study's axes over the parameters of penalties, reached by the penalties' names."""

from __future__ import annotations

import re

import pytest
import tiny_linear_row
import tiny_study

from benchmark.loading import submissions
from benchmark.runtime.errors import BenchmarkError
from benchmark.studies import grids

PENALISED = tiny_linear_row.SUBMISSION.replace(
    "learning_rate: 0.01}", "learning_rate: 0.01, penalties: [{name: msvp, parameters: {lambda_q: 0.1}}]}"
)


def test_an_axis_reaches_a_penalty_by_its_name(loading) -> None:
    (submissions.FOLDER / "Tiny2026Linear/submission.yaml").write_text(PENALISED)
    tiny_study.add(loading, ("  model.bias: [true, false]", "  training.penalties.msvp.lambda_q: [0.0, 0.3]"))
    (loading.root / "submissions/Tiny2026Linear/studies/grid.yaml").write_text(
        (loading.root / "submissions/Tiny2026Linear/studies/grid.yaml").read_text().partition("claims:")[0]
    )
    cells = grids.load("Tiny2026Linear", "grid").cells.values()
    found = [cell.training.penalties[0].parameters["lambda_q"] for cell in cells if cell.training]
    assert found == [0.0, 0.3, 0.0, 0.3]
    base = submissions.settings(submissions.load("Tiny2026Linear"), "small", "tiny").training
    assert base.penalties[0].parameters == {"lambda_q": 0.1}, "the variant's own setting moved"


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("training.penalties.mvsp.lambda_q", "the variant has no penalty 'mvsp'; did you mean 'msvp'?"),
        ("training.penalties.msvp", "names no setting; write training.penalties.<name>.<parameter>"),
        ("training.penalties.0.name.x", "names no setting; write training.penalties.<name>.<parameter>"),
    ],
)
def test_an_axis_of_no_penalty_is_refused(loading, key, message) -> None:
    (submissions.FOLDER / "Tiny2026Linear/submission.yaml").write_text(PENALISED)
    tiny_study.add(loading, ("training.learning_rate: 0.001", f"{key}: 0.001"))
    with pytest.raises(BenchmarkError, match=re.escape(message)):
        grids.load("Tiny2026Linear", "grid")
