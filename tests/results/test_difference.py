"""What differs between two Records: numbers, images, facts."""

from __future__ import annotations

import regression_record
from regression_record import changed, images, proportion

from benchmark.results.difference import Difference, compare
from benchmark.results.per_image import PerImage

BEFORE = changed()
NAME = "robust Linf 0.15"


def broken(*broken: int) -> PerImage:
    """Only the named images of 100 are broken."""
    digits = "".join("0" if image in broken else "1" for image in range(100))
    return PerImage(row=BEFORE.row, scores={NAME: digits})


def test_the_same_record_is_the_same() -> None:
    row = compare(BEFORE, changed(), broken(3), broken(3))
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
    row = compare(BEFORE, after, broken(3), broken(4, 7))
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
    for was, now in (
        (None, broken(1)),
        (broken(1), None),
        (broken(1), PerImage(row=BEFORE.row, scores={NAME: "1" * 50})),
    ):
        (number,) = compare(BEFORE, after, was, now).moved
        assert number.lost is None
        assert number.gained is None


def test_images_that_flip_without_moving_the_count_are_a_difference() -> None:
    row = compare(BEFORE, changed(), broken(3), broken(4))
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


def test_copies_of_an_image_count_by_severity() -> None:
    after = changed("corrupted", "corruptions", 0, "mean", to=proportion(149, 200))
    was, now = images(BEFORE), images(BEFORE)
    fog = now.scores["corrupted: fog"]
    now = PerImage(row=now.row, scores=now.scores | {"corrupted: fog": "1" + fog[1:]})
    (number,) = [one for one in compare(BEFORE, after, was, now).moved if one.name == "corrupted: fog"]
    assert (fog[0], number.lost, number.gained) == ("2", (0,), ())
