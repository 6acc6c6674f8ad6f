"""Published Records against built ones: each kind of difference is found, and nothing else is."""

from __future__ import annotations

import pytest
import regression_record
from regression_record import changed, content, proportion

from benchmark.results.record import Record
from benchmark.results.regression import RowComparison, compare_row, compare_rows

HERE = {"processor": "Some Chip (family 1, model 2)", "threads": "1"}
ELSEWHERE = HERE | {"processor": "Other Chip"}


PUBLISHED = regression_record.changed()


def outside(found: RowComparison) -> list[str]:
    return [line.metric for line in found.outside]


def test_the_same_record_on_the_same_machine_is_the_same_in_everything() -> None:
    found = compare_row(PUBLISHED, PUBLISHED, HERE, HERE)
    assert {line.verdict for line in found.lines} == {"same"}
    assert not found.failed
    assert not found.notes
    assert [(line.metric, line.published) for line in found.lines if line.images is not None] == [
        ("clean", "95 of 100"),
        ("robust Linf 0.15", "40 of 100"),
        ("certified L2 0.1", "61 of 100"),
        ("smoothed L2 0.1", "61 of 100"),
        ("corrupted", "150 of 200"),
        ("autoattack-Linf-0.15", "42 of 100"),
        ("smoothed clean", "90 of 100"),
        ("corrupted: fog", "150 of 200"),
        ("autoattack-Linf-0.15 after apgd-ce", "50 of 100"),
        ("autoattack-Linf-0.15 after square", "42 of 100"),
    ]
    assert {line.allowed for line in found.lines} == {0, None}


@pytest.mark.parametrize(
    ("path", "to", "metric"),
    [
        (("clean",), proportion(94), "clean"),
        (("robust", 0, "accuracy"), proportion(41), "robust Linf 0.15"),
        (("certified", 0, "accuracy"), proportion(60), "certified L2 0.1"),
        (("smoothed", "certified", 0, "accuracy"), proportion(62), "smoothed L2 0.1"),
        (("smoothed", "clean"), proportion(91), "smoothed clean"),
        (("corrupted", "accuracy"), proportion(151, 200), "corrupted"),
        (("corrupted", "corruptions", 0, "mean"), proportion(149, 200), "corrupted: fog"),
        (("attacks", 0, "accuracy"), proportion(43), "autoattack-Linf-0.15"),
        (("attacks", 0, "remaining", "apgd-ce"), 51, "autoattack-Linf-0.15 after apgd-ce"),
        (("attacks", 0, "spec", "seed"), 1, "autoattack-Linf-0.15: parameters"),
        (("attacks", 0, "engine"), "reference", "autoattack-Linf-0.15: parameters"),
        (("division",), "open", "division"),
        (("trust",), "re-evaluated", "trust"),
        (("seed",), 1, "seed"),
        (("parameters",), 1235, "parameters"),
        (("flops",), 5679, "FLOPs"),
        (("settings", "training", "epochs"), 2, "settings"),
        (("sha256", "data test"), "d2", "sha256 of data test"),
        (("sha256", "weights"), "w2", "sha256 of weights"),
        (("sha256", "evidence"), "e2", "sha256 of evidence"),
        (("sha256", "adversarial images standard"), "a2", "sha256 of adversarial images standard"),
    ],
)
def test_any_single_difference_is_found_on_the_same_machine(path, to, metric) -> None:
    found = compare_row(PUBLISHED, changed(*path, to=to), HERE, HERE)
    assert outside(found) == [metric]
    assert found.failed


def test_code_that_changed_is_said_and_is_no_failure() -> None:
    made = content()
    made["sha256"] |= {"code train": "c2", "code certify": "c3"}
    found = compare_row(PUBLISHED, Record.model_validate(made), HERE, HERE)
    assert not found.failed
    assert found.notes == ("was built by other code: certify, train",)


@pytest.mark.parametrize(
    ("count", "weights", "verdict", "allowed"),
    [
        (94, "w1", "within", 1),
        (93, "w1", "OUTSIDE", 1),
        (95, "w1", "same", 1),
        (85, "w2", "within", 10),
        (84, "w2", "OUTSIDE", 10),
    ],
)
def test_elsewhere_a_tenth_may_differ_or_one_image_where_the_weights_are_the_same(count, weights, verdict, allowed):
    made = content() | {"clean": proportion(count)}
    made["sha256"] |= {"weights": weights, "evidence": "e2", "adversarial images standard": "a2"}
    made["attacks"][0]["remaining"]["apgd-ce"] = 99
    found = compare_row(PUBLISHED, Record.model_validate(made), HERE, ELSEWHERE)
    (clean,) = [line for line in found.lines if line.metric == "clean"]
    assert (clean.verdict, clean.images, clean.allowed) == (verdict, 95 - count, allowed)
    assert outside(found) == (["clean"] if verdict == "OUTSIDE" else [])
    assert found.notes == (
        "is compared within the allowance, since processor was Some Chip (family 1, model 2) and is Other Chip",
    )


def test_an_images_corrupted_copies_count_as_one_image() -> None:
    for count, metrics in ((148, []), (147, ["corrupted"])):
        built = changed("corrupted", "accuracy", to=proportion(count, 200))
        assert outside(compare_row(PUBLISHED, built, HERE, ELSEWHERE)) == metrics


def test_other_data_fail_elsewhere_too() -> None:
    found = compare_row(PUBLISHED, changed("sha256", "data test", to="d2"), HERE, ELSEWHERE)
    assert outside(found) == ["sha256 of data test"]


@pytest.mark.parametrize(
    ("there", "built", "why"),
    [
        (None, PUBLISHED, "it is not known which machine published it"),
        (HERE, changed("environment", "torch", to="2.16.0"), "torch was 2.15.0 and is 2.16.0"),
        (HERE, changed("environment", "torch (certify)", to="2.16.0"), "torch (certify) was unknown and is 2.16.0"),
        (HERE | {"threads": "2"}, PUBLISHED, "threads was 2 and is 1"),
    ],
)
def test_only_the_same_machine_and_versions_owe_the_same_bytes(there, built, why) -> None:
    found = compare_row(PUBLISHED, built, there, HERE)
    assert found.notes == (f"is compared within the allowance, since {why}",)
    assert "sha256 of weights" not in {line.metric for line in found.lines}


def test_a_number_that_one_record_lacks_is_outside() -> None:
    found = compare_row(PUBLISHED, changed("certified", to=[]), HERE, HERE)
    assert [(line.metric, line.published, line.built) for line in found.outside] == [
        ("certified L2 0.1", "61 of 100", "none")
    ]
    found = compare_row(changed("certified", to=[]), PUBLISHED, HERE, HERE)
    assert [(line.metric, line.published, line.built) for line in found.outside] == [
        ("certified L2 0.1", "none", "61 of 100")
    ]


def test_other_rules_or_other_images_are_one_line_and_no_numbers() -> None:
    found = compare_row(PUBLISHED, changed("track_version", to=2), HERE, HERE)
    assert not found.lines
    assert found.problem == "is of other rules: track tiny version 1 published, 2 built; publish it again"
    found = compare_row(PUBLISHED, changed("n", to=50), HERE, HERE)
    assert not found.lines
    assert found.problem == "counts other images: n 100 published, 50 built; publish it again"


def test_a_missing_row_fails_where_it_is_wanted_and_is_said_where_it_is_not() -> None:
    row = PUBLISHED.row
    at = {row: HERE}
    both = {row: PUBLISHED}
    for published, built, wanted, problem, notes in (
        (both, {}, [row], "is published and not built; run `rvb repro`", ()),
        (both, {}, [], "", ("is published and not built here",)),
        ({}, both, [row], f"is built and not published; run `rvb publish {row}`", ()),
        ({}, {}, [row], "is neither published nor built; run `rvb repro`, then `rvb publish`", ()),
    ):
        (found,) = compare_rows(published, built, at, HERE, wanted)
        assert (found.problem, found.notes) == (problem, notes)
        assert found.failed == bool(problem)
    assert not compare_rows({}, both, at, HERE, [])


def test_every_row_is_held_against_the_machine_that_published_it() -> None:
    other = changed("variant", to="large")
    rows = {PUBLISHED.row: PUBLISHED, other.row: other}
    found = compare_rows(rows, rows, {PUBLISHED.row: HERE}, HERE, rows)
    assert {one.row: bool(one.notes) for one in found} == {PUBLISHED.row: False, other.row: True}
