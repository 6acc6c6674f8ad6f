"""The three findings on made-up studies whose answers are known."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from benchmark.records.finding import Finding
from benchmark.records.study import Run, StudyResult
from benchmark.specs import methods

CELLS = ("ViT depth 2, 1 head", "CoViT depth 2, K3", "ViT depth 4, 1 head", "CoViT depth 4, K3")
QUANTITIES = ("sigma_max", "log_norm", "residual_gain")
IMAGES = 30
JACOBIAN = f"Jacobian (first {IMAGES} images)"  # as a study labels it that has more images


def study(middle: float, attention: float) -> tuple[StudyResult, pa.Table]:
    """Blocks between the ends amplify by `middle` and the ends by 2; ViTs have `attention` more accuracy under FGSM, and as
    much less under the others; the smaller a cell's mean of every quantity, the more robust it is.
    """
    runs, parts, random = [], [], np.random.default_rng(0)
    for place, cell in enumerate(CELLS):
        for seed in range(3):
            shift = attention / 2 if cell.startswith("ViT") else -attention / 2
            values = {
                "FGSM": 0.5 + shift + 0.01 * seed, "PGD-20 L2": 0.5 - shift + 0.01 * seed,
                "CW: accuracy within": (0.9, 0.5 - shift + 0.01 * seed), "AutoAttack L2": 0.1 * place,
            } | {f"{JACOBIAN}: {quantity}: mean": 5.0 - place for quantity in QUANTITIES}  # fmt: skip
            runs.append(Run.model_construct(cell=cell, seed=seed, values=values))
            columns = {"cell": [cell] * IMAGES, "seed": [seed] * IMAGES}
            for block in range(1, 1 + int(cell.split("depth ")[1][0])):
                size = 2.0 if block in (1, 4) else middle
                for quantity in QUANTITIES:
                    columns[f"{JACOBIAN}: {quantity} of block {block}"] = size + 0.01 * random.standard_normal(IMAGES)
            parts.append(pa.table(columns))
    return StudyResult.model_construct(runs=tuple(runs), n=100), pa.concat_tables(parts, promote_options="default")


def findings(middle: float, attention: float) -> list[Finding]:
    module = methods.module("Wang2022Cauchy", "findings")
    module.DRAWS = 40  # seconds saved
    return module.three_findings(*study(middle, attention))


def verdicts(middle: float, attention: float, word: str) -> set[str]:
    return {finding.verdict for finding in findings(middle, attention) if word in finding.statement}


@pytest.mark.parametrize(("middle", "verdict"), [(1.0, "holds"), (3.0, "opposite")])
def test_ends_are_held_against_what_is_between(middle, verdict) -> None:
    assert verdicts(middle, 0.2, "first and the last") == {verdict}


@pytest.mark.parametrize(("attention", "verdict"), [(0.2, "holds"), (-0.2, "opposite"), (0.0, "not shown")])
def test_attention_helps_under_one_step_and_hurts_under_many(attention, verdict) -> None:
    assert verdicts(1.0, attention, "attention") == {verdict}


def test_of_two_models_no_order_is_shown_and_of_all_the_sign_is_right() -> None:
    ranks = {finding.statement: finding for finding in findings(1.0, 0.2) if "goes with a higher" in finding.statement}
    assert len(ranks) == 9
    assert all(finding.estimate == 1 for finding in ranks.values())
    assert {finding.verdict for text, finding in ranks.items() if "all models" not in text} == {"not shown"}


def test_a_last_block_that_is_not_known_is_not_replaced_by_the_one_before() -> None:
    result, table = study(1.0, 0.2)
    name = f"{JACOBIAN}: sigma_max of block 4"
    column = [None if value is None else float("nan") for value in table[name].to_pylist()]
    table = table.set_column(table.column_names.index(name), name, pa.array(column, pa.float64()))
    module = methods.module("Wang2022Cauchy", "findings")

    def shapes(cell: str, quantity: str) -> list[tuple[int, ...]]:
        return [values.shape for values in module._by_block(table, cell, quantity)]

    assert shapes(CELLS[2], "sigma_max") == [(4, 0)] * 3
    assert shapes(CELLS[2], "log_norm") == [(4, IMAGES)] * 3
    assert shapes(CELLS[0], "log_norm") == [(2, IMAGES)] * 3
    assert module._ends(result, table, "sigma_max", "sigma_max") == []
    assert len(module._ends(result, table, "log_norm", "the logarithmic norm")) == 2


@pytest.mark.parametrize(
    ("blocks", "verdict"),
    [([(3, 4, 1, 3), (3, 1, 4, 3)], "opposite"), ([(50, 2, 2, 50), (1, 2, 2, 1), (1, 2, 2, 1)], "not shown")],
)
def test_what_trainings_contradict_does_not_hold(blocks, verdict) -> None:
    """Means over the seeds would have the ends largest in both."""
    result, _ = study(1.0, 0.2)
    random, parts = np.random.default_rng(0), []
    for seed, sizes in enumerate(blocks):
        columns = {"cell": [CELLS[2]] * IMAGES, "seed": [seed] * IMAGES}
        for block, size in enumerate(sizes, start=1):
            columns[f"{JACOBIAN}: sigma_max of block {block}"] = size + 0.01 * random.standard_normal(IMAGES)
        parts.append(pa.table(columns))
    (told,) = methods.module("Wang2022Cauchy", "findings")._ends(result, pa.concat_tables(parts), "sigma_max", "it")
    assert told.verdict == verdict


def test_a_perfect_order_of_four_models_is_no_finding_and_of_eight_it_is() -> None:
    module = methods.module("Wang2022Cauchy", "findings")
    module.DRAWS, order = 200, module._order
    models = np.arange(8.0)
    four, eight = (np.stack([-models[:n], models[:n]], axis=1) for n in (4, 8))
    assert order(four) == pytest.approx((1.0, 0.0, 1.0))
    assert order(eight) == pytest.approx((1.0, 1.0, 1.0))
    nine = np.stack([-np.arange(9.0), np.arange(9.0)], axis=1)
    assert order(nine)[1] > 0


@pytest.mark.slow
def test_orders_by_chance_are_rarely_findings() -> None:
    module, random = methods.module("Wang2022Cauchy", "findings"), np.random.default_rng(0)
    module.DRAWS = 40
    wrong = 0
    for _ in range(60):
        _, low, high = module._order(random.standard_normal((5, 2)))
        wrong += low > 0 or high < 0
    assert wrong <= 7  # 5% of 60 are 3, two deviations 3.4


def test_models_that_are_all_as_robust_show_no_order() -> None:
    """AutoAttack leaves none of them an image: tau is not defined."""
    order = methods.module("Wang2022Cauchy", "findings")._order
    assert order(np.array([[4.0, 0.0], [3.0, 0.0], [2.0, 0.0], [1.0, 0.0]])) == (0.0, -1.0, 1.0)
