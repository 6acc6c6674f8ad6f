"""What others broke, counted: numbers fall by exactly those images, whoever contributed them first is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_record import record

from benchmark.evaluation.evidence import proportion
from benchmark.records import contributed
from benchmark.records.contributed import BrokenImage, BrokenRow, Contribution, credits, effect, lowered
from benchmark.records.record import Record
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.base import to_json

WEIGHTS = "a" * 64
SCORES = {"robust Linf 0.15": "1" * 40 + "0" * 60, "robust L2 0.5": "1" * 30 + "0" * 70}


def row(**changes) -> Record:
    return record("A", 40, 30, certified=20).model_copy(update={"sha256": {"weights": WEIGHTS}, **changes})


def broke(*images: int, credit: str = "Jane Doe", lost=("Linf 0.15",), certified: float = 0, weights=WEIGHTS) -> Contribution:
    common = {"threat": "Linf 0.15", "linf": 0.15, "l2": 0.4, "prediction": 3, "margin": -0.1}
    broken = [BrokenImage(image=image, lost=lost, certified=certified, **common) for image in images]
    return Contribution(credit=credit, sha256="b" * 64, weights=weights, images=broken)


def put(folder: Path, *files: Contribution, version: int = 1) -> Path:
    path = folder / "A-v.json"
    path.write_text(to_json(BrokenRow(track="digits", track_version=version, row="A-v", contributions=files)))
    return path


def test_numbers_fall_by_the_images_that_counted_and_a_contradicted_certificate_certifies_nothing() -> None:
    """Of images 39 to 41 one was lost before; another ball, clean and certified numbers stay."""
    made, scores = lowered(row(), SCORES, [broke(39, 40, 38), broke(39, credit="John Roe")])
    assert made.robust[0].accuracy == proportion(np.arange(100) < 38)
    assert scores == SCORES | {"robust Linf 0.15": "1" * 38 + "0" * 62}
    assert (made.robust[1:], made.clean, made.certified) == (row().robust[1:], row().clean, row().certified)
    assert lowered(row(), None, []) == (row(), None)
    with pytest.raises(BenchmarkError, match=r"others broke images of robust Linf 0\.15, which it lacks by image"):
        lowered(row(), None, [broke(3)])
    made, scores = lowered(row(), SCORES, [broke(3, lost=(), certified=0.3)])
    assert (made.certified, scores, made.robust) == ((), SCORES, row().robust), "a contradicted certificate"


def test_the_effect_is_what_was_not_known_before_and_an_image_is_credited_once() -> None:
    lowered_by = effect(row(), SCORES, [broke(3)], broke(3, 4, lost=("Linf 0.15", "L2 0.5")))
    assert [(ball.threat, ball.before, ball.after, ball.lost) for ball in lowered_by] == [
        ("Linf 0.15", 39, 38, (4,)), ("L2 0.5", 30, 28, (3, 4)), ("L2 1", 0, 0, ())
    ]  # fmt: skip
    credited = credits([broke(3, 4), broke(4, 5, credit="John Roe"), broke(3, credit="Third", lost=("L2 0.5",))])
    assert credited == {"robust Linf 0.15": "−2 Jane Doe, −1 John Roe", "robust L2 0.5": "−1 Third"}


def test_what_is_of_other_weights_or_rules_is_not_counted(tmp_path) -> None:
    assert contributed.read(tmp_path, row()) == ()
    path = put(tmp_path, broke(3), broke(4, credit="John Roe", weights="c" * 64))
    assert [file.credit for file in contributed.read(tmp_path, row())] == ["Jane Doe"]
    assert "images by John Roe of other weights" in contributed.stale(contributed.load(path), row())
    put(tmp_path, broke(3))
    assert contributed.stale(contributed.load(path), row()) == ""
    assert contributed.stale(contributed.load(path), None) == "images of a row that is not published"
    put(tmp_path, broke(3), version=2)
    assert contributed.read(tmp_path, row()) == ()


def test_damaged_files_are_one_line(tmp_path) -> None:
    for foreign in (broke(100), broke(3, lost=("L2 9",))):
        path = put(tmp_path, foreign)
        with pytest.raises(BenchmarkError, match=r"A-v\.json names an image or a ball that A-v does not have"):
            contributed.read(tmp_path, row())
    for content in ("", "[]", '{"row": "A-v"}', path.read_text().replace("Jane Doe", "a\\nb")):
        path.write_text(content)
        with pytest.raises(BenchmarkError, match=r"A-v\.json(: | is no valid JSON)"):
            contributed.read(tmp_path, row())
