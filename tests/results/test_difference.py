"""What differs between two Records: numbers, images, facts."""

from __future__ import annotations

import numpy as np
import regression_record
from regression_record import changed, proportion

from benchmark.results.difference import Difference, compare

BEFORE = changed()
NAME = "robust Linf 0.15"


def verdicts(*broken: int) -> dict[str, np.ndarray]:
    found = np.ones(100, bool)
    found[list(broken)] = False
    return {NAME: found}


def test_the_same_record_is_the_same() -> None:
    row = compare(BEFORE, changed(), verdicts(3), verdicts(3))
    assert row.kind == "same"
    assert not row.breaks
    assert not row.moved
    assert {number.name for number in row.numbers} >= {
        "clean",
        NAME,
        "certified L2 0.1",
        "autoattack-Linf-0.15",
        "corrupted: fog",
    }


def test_a_number_that_moved_names_its_images() -> None:
    after = changed("robust", 0, "accuracy", to=proportion(39))
    row = compare(BEFORE, after, verdicts(3), verdicts(4, 7))
    (number,) = row.moved
    assert (number.name, number.before, number.after, number.lost, number.gained) == (
        NAME,
        (40, 100),
        (39, 100),
        (4, 7),
        (3,),
    )
    assert row.kind == "changed"
    assert row.breaks


def test_without_evidence_the_images_are_not_known() -> None:
    after = changed("robust", 0, "accuracy", to=proportion(39))
    for was, now in ((None, verdicts(1)), (verdicts(1), None), (verdicts(1), {NAME: np.ones(50, bool)})):
        (number,) = compare(BEFORE, after, was, now).moved
        assert number.lost is None
        assert number.gained is None


def test_images_that_flip_without_moving_the_count_are_a_difference() -> None:
    row = compare(BEFORE, changed(), verdicts(3), verdicts(4))
    assert [number.name for number in row.moved] == [NAME]
    assert row.breaks


def test_other_bytes_alone_break_nothing_and_code_is_not_compared() -> None:
    digests = regression_record.content()["sha256"]
    row = compare(BEFORE, changed("sha256", to=digests | {"weights": "w2", "code train": "c2"}))
    assert row.kind == "changed"
    assert row.facts == (("sha256 of weights", "w1", "w2"),)
    assert not row.breaks


def test_new_and_removed_rows_and_numbers() -> None:
    assert compare(None, BEFORE).kind == "new"
    assert not compare(None, BEFORE).breaks
    assert compare(BEFORE, None).breaks
    gone = compare(BEFORE, changed("certified", to=[]))
    (number,) = gone.moved
    assert (number.before, number.after) == ((61, 100), None)
    both = Difference(base="abc", rows=(compare(None, BEFORE), compare(BEFORE, BEFORE)))
    assert [row.kind for row in both.changed] == ["new"]
