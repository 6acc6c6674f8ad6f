"""The statements about the penalty on made-up studies whose answers are known."""

from __future__ import annotations

import pyarrow as pa
import pytest

from benchmark.records.finding import Finding
from benchmark.records.study import Run, StudyResult
from benchmark.specs import methods


def findings(sigma: float, clean: float, robust: float, seeds: int = 3) -> list[Finding]:
    """SpecFormer's values beside a plain ViT of sigma 1, clean 0.95, robust 0.5; seeds apart by 0.01."""
    runs = []
    for cell, values in (
        ("ViT-S, ViT", (1.0, 0.95, 0.5)),
        ("ViT-S, SpecFormer", (sigma, clean, robust)),
        ("ViT-S, L2Former", (9, 0, 0)),
    ):
        for seed in range(seeds):
            near = [value + 0.01 * (seed - 1) for value in values]
            named = dict(zip(("norms: mean", "clean", "AutoAttack"), near, strict=True))
            runs.append(Run.model_construct(cell=cell, seed=seed, values={**named, "FGSM": near[2], "PGD-2": near[2]}))
    result = StudyResult.model_construct(runs=tuple(runs), n=100)
    return methods.module("Hu2024SpecFormer", "findings").standard_training(result, pa.table({}))


@pytest.mark.parametrize(
    ("values", "verdicts"),
    [
        ((0.3, 0.98, 0.7), ["holds", "holds", "holds"]),
        ((0.8, 0.80, 0.3), ["opposite", "opposite", "opposite"]),
        ((0.5, 0.94, 0.5), ["not shown", "not shown", "not shown"]),
    ],
)
def test_each_statement_is_judged(values, verdicts) -> None:
    found = findings(*values)
    assert len(found) == 5
    assert [finding.verdict for finding in found[:3]] == verdicts
    assert {finding.verdict for finding in found[2:]} == {verdicts[2]}
    assert all("3 and 3 seeds" in finding.over for finding in found)


def test_estimates_are_signed_as_the_statements_are() -> None:
    halved, kept, *attacks = findings(0.3, 0.93, 0.6)
    assert halved.estimate == pytest.approx(0.5 * 1.0 - 0.3)
    assert kept.estimate == pytest.approx(-0.02 + 0.01)
    assert all(attack.estimate == pytest.approx(0.1) for attack in attacks)


def test_one_seed_shows_nothing() -> None:
    assert findings(0.3, 0.98, 0.7, seeds=1) == []
