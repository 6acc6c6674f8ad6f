"""Which order a board claims: what images and seeds show, and no more."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seeds_study import published, verdicts
from tiny_record import proportion, record

from benchmark.records.accuracy import Proportion
from benchmark.records.comparison import better, mcnemar
from benchmark.records.record import Record
from benchmark.specs import tracks
from leaderboard.rank import ball, columns, label, out_of_reach, rank
from leaderboard.standings import IMAGES, SEEDS, UNKNOWN, Tie, _most, standings

TRACK = tracks.load("digits")
STEADY = (-1, 1, 0, -1, 1)


def images(*records: Record) -> dict[str, dict[str, str]]:
    """Verdicts in which the first images are right."""
    return {made.row: {"robust Linf 0.15": verdicts(made.robust[0].accuracy.count)} for made in records}


def ranks(records: list[Record], *studies) -> list[tuple[str, str]]:
    return [(row.record.submission, row.rank) for row in rank(records, TRACK, images(*records), studies)]


def test_a_number_has_a_name_in_words() -> None:
    names = ["clean", "robust Linf 0.0314", "smoothed L2 0.25", "corrupted"]
    assert [label(name) for name in names] == [
        "clean", "robust Linf 8/255", "smoothed version, certified L2 0.25", "corrupted (ImageNet-C strengths)",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("Linf 0.00785", "Linf 2/255"), ("Linf 0.0314", "Linf 8/255"), ("L2 0.1412", "L2 36/255"), ("L2 0.5", "L2 0.5"),
        ("L2 0.2", "L2 0.2"), ("L2 0.125", "L2 0.125"), ("L2 1", "L2 1"), ("L2 2.14", "L2 2.14"), ("", ""),
    ],
)  # fmt: skip
def test_a_radius_is_written_as_papers_write_it(name, shown) -> None:
    assert ball(name) == shown


def test_rows_stand_by_robust_accuracy_and_are_ordered_where_the_images_say_so() -> None:
    records = [record("B", 40, 10), record("A", 40, 30), record("C", 70, 0, certified=60), record("D", 10, 90)]
    rows = rank(records, TRACK, images(*records))
    assert [(row.record.submission, row.rank) for row in rows] == [("C", "1"), ("A", "2–3"), ("B", "2–3"), ("D", "4")]
    names = columns(TRACK)
    assert rows[0].cells[names.index("certified L2 0.1")] == Proportion(**proportion(60))
    assert rows[1].cells[names.index("certified L2 0.1")] is None
    assert len(rows[0].cells) == len(rows[0].spreads) == len(names)


def test_a_radius_that_no_noise_certifies_ranks_no_row() -> None:
    """All 4,000 samples of one class certify 0.2 * ppf((0.001 / 6)^(1 / 4000)), which is 0.57; of 40 samples 0.17."""
    assert out_of_reach(TRACK) == []
    coarse = TRACK.model_copy(update={"smoothing": TRACK.smoothing.model_copy(update={"n": 40})})
    assert out_of_reach(coarse) == ["smoothed L2 0.25", "smoothed L2 0.5"]
    (row,) = rank([record("A", 70, 30, smoothed=50)], coarse)
    assert [name for name in row.standings if name.startswith("smoothed")] == ["smoothed L2 0.1"]


def test_each_number_ranks_by_itself_the_rows_that_have_it() -> None:
    records = [record("A", 70, 0, certified=10), record("B", 40, 0, certified=60), record("C", 10, 0)]
    scores = images(*records)
    for made, count in zip(records, (10, 60), strict=False):
        scores[made.row]["certified L2 0.1"] = verdicts(count)
    ranked = {row.record.submission: row.standings for row in rank(records, TRACK, scores)}
    assert {name: own["robust Linf 0.15"].rank for name, own in ranked.items()} == {"A": "1", "B": "2", "C": "3"}
    assert {name: own["certified L2 0.1"].rank for name, own in ranked.items() if "certified L2 0.1" in own} == {
        "A": "2", "B": "1",
    }  # fmt: skip


def test_a_difference_of_few_images_is_no_order() -> None:
    """6 images of 100 on which the two differ, all in favour of one: p is 0.03, and 0.19 among six pairs."""
    assert ranks([record("A", 46, 0), record("B", 40, 0)]) == [("A", "1"), ("B", "2")]
    close = [record(name, count, 0) for name, count in (("A", 46), ("B", 40), ("C", 40), ("D", 40))]
    assert ranks(close) == [(name, "1–4") for name in "ABCD"]


def test_seeds_that_may_turn_the_order_leave_it_open() -> None:
    records = [record("A", 70, 0), record("B", 40, 0)]
    steady = [published("A", [70 + s for s in STEADY]), published("B", [40 + s for s in STEADY])]
    wild = published("B", [40, 90, 60, 75, 85])
    assert ranks(records, *steady) == [("A", "1"), ("B", "2")]
    assert ranks(records, steady[0], wild) == [("A", "1–2"), ("B", "1–2")]
    assert ranks(records, wild) == [("A", "1"), ("B", "2")], "A is one draw: the images decide"
    assert [row.trainings is None for row in rank(records, TRACK, images(*records), [wild])] == [True, False]


def test_order_does_not_depend_on_the_order_given() -> None:
    records = [record(name, 50, 50) for name in "CAB"]
    assert rank(records, TRACK, images(*records)) == rank(records[::-1], TRACK, images(*records))


@pytest.mark.parametrize("change", [{"n": 50}, {"track_version": 7}, {"settings": {"model": {"width": 3}}}])
def test_a_study_of_another_row_than_todays_says_nothing_of_it(change) -> None:
    """Other rules, images or settings; of attacks contributed against the row it knows nothing."""
    made = record("A", 70, 0)
    study = published("A", [70, 71, 69, 70, 70]).model_dump()
    for key, value in change.items():
        if key == "settings":
            study["result"]["cells"][0]["settings"] |= value
        else:
            study["result"][key] = value
    (row,) = rank([made], TRACK, images(made), [published("A", [70]).model_validate(study)])
    assert row.trainings is None
    contributed = made.model_dump()
    contributed["settings"]["adaptive"] = [{"attack": "own", "norm": "L2", "eps": 1}]
    (row,) = rank([Record.model_validate(contributed)], TRACK, images(made), [published("A", [70, 71])])
    assert row.trainings is not None


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 60), st.sampled_from([0.05, 0.05 / 66, 0.05 / 499500]))
def test_the_most_losses_are_those_of_mcnemars_test(apart: int, error: float) -> None:
    shown = [k for k in range(apart // 2 + 1) if mcnemar("1" * (apart - k) + "0" * k, "0" * (apart - k) + "1" * k) <= error]
    assert _most(np.array([apart]), error)[0] == max(shown, default=-1)


@pytest.mark.parametrize("seed", range(2))
def test_ranks_and_ties_are_those_of_the_pairs(seed) -> None:
    rng = np.random.default_rng(seed)
    names = [f"row{place}" for place in range(9)]
    skills = np.sort(rng.normal(0, 0.8, 9))[::-1]
    images = rng.normal(0, 1, 120)
    drawn = {
        name: ["".join("01"[int(m > 0)] for m in skill + images + rng.normal(0, 0.6, 120)) for _ in range(4)]
        for name, skill in zip(names, skills, strict=True)
    }
    judged = {name: runs[0] for name, runs in drawn.items() if name != "row7"}
    trained = {name: drawn[name] for name in names[::2]}
    ranked = standings(names, judged, trained)
    signs = {}
    for row, other in itertools.permutations(names, 2):
        seeds = (trained[row], trained[other]) if row in trained and other in trained else None
        compared = row in judged and other in judged
        signs[row, other] = better((judged[row], judged[other]), seeds, 36) if compared else 0
    for name in names:
        own = {other: signs[name, other] for other in names if other != name}
        assert ranked[name].best == 1 + sum(sign == -1 for sign in own.values())
        assert ranked[name].worst == 9 - sum(sign == 1 for sign in own.values())
        tied = [other for tie in ranked[name].ties for other in tie.rows]
        assert sorted(tied) == [other for other, sign in own.items() if sign == 0]
    assert ranked["row7"].ties == (Tie(UNKNOWN, tuple(name for name in names if name != "row7")),)


def test_a_tie_names_the_test_that_leaves_it() -> None:
    judged = {"A": verdicts(70), "B": verdicts(68), "C": verdicts(30)}
    wild = [verdicts(right) for right in (30, 80, 90, 20, 70)]
    ranked = standings("ABCD", judged, {"A": [verdicts(70)] * 2, "C": wild})
    assert ranked["A"].ties == (Tie(IMAGES, ("B",)), Tie(SEEDS, ("C",)), Tie(UNKNOWN, ("D",)))
    assert ranked["B"].ties == (Tie(IMAGES, ("A",)), Tie(UNKNOWN, ("D",)))
    assert (ranked["A"].rank, ranked["B"].rank, ranked["C"].rank) == ("1–4", "1–3", "2–4")


def test_rows_that_are_alone_or_have_no_order_to_show() -> None:
    assert standings([], {}, {}) == {}
    assert standings(["A"], {"A": "101"}, {})["A"].rank == "1"
    assert [ranked.rank for ranked in standings("AB", {"A": "10", "B": "10"}, {}).values()] == ["1–2", "1–2"]
    with pytest.raises(ValueError, match="other numbers of images"):
        standings("AB", {"A": "101", "B": "10"}, {})
