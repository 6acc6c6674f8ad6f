"""All pairs at once say what each pair by itself does."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark.results.comparison import better, mcnemar
from leaderboard.standings import IMAGES, SEEDS, UNKNOWN, Tie, _most, standings


def verdicts(right: int, n: int = 100) -> str:
    return "1" * right + "0" * (n - right)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 60), st.sampled_from([0.05, 0.05 / 66, 0.05 / 499500]))
def test_the_most_losses_are_those_of_mcnemars_test(apart: int, error: float) -> None:
    shown = [
        k for k in range(apart // 2 + 1) if mcnemar("1" * (apart - k) + "0" * k, "0" * (apart - k) + "1" * k) <= error
    ]
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
    found = standings(names, judged, trained)
    signs = {}
    for one, other in itertools.permutations(names, 2):
        seeds = (trained[one], trained[other]) if one in trained and other in trained else None
        known = one in judged and other in judged
        signs[one, other] = better((judged[one], judged[other]), seeds, 36) if known else 0
    for name in names:
        own = {other: signs[name, other] for other in names if other != name}
        assert found[name].best == 1 + sum(sign == -1 for sign in own.values())
        assert found[name].worst == 9 - sum(sign == 1 for sign in own.values())
        tied = [other for tie in found[name].ties for other in tie.rows]
        assert sorted(tied) == [other for other, sign in own.items() if sign == 0]
    assert found["row7"].ties == (Tie(UNKNOWN, tuple(name for name in names if name != "row7")),)


def test_a_tie_names_the_test_that_leaves_it() -> None:
    judged = {"A": verdicts(70), "B": verdicts(68), "C": verdicts(30)}
    wild = [verdicts(right) for right in (30, 80, 90, 20, 70)]
    found = standings("ABCD", judged, {"A": [verdicts(70)] * 2, "C": wild})
    assert found["A"].ties == (Tie(IMAGES, ("B",)), Tie(SEEDS, ("C",)), Tie(UNKNOWN, ("D",)))
    assert found["B"].ties == (Tie(IMAGES, ("A",)), Tie(UNKNOWN, ("D",)))
    assert (found["A"].rank, found["B"].rank, found["C"].rank) == ("1–4", "1–3", "2–4")


def test_rows_that_are_alone_or_have_no_order_to_show() -> None:
    assert standings([], {}, {}) == {}
    assert standings(["A"], {"A": "101"}, {})["A"].rank == "1"
    assert [found.rank for found in standings("AB", {"A": "10", "B": "10"}, {}).values()] == ["1–2", "1–2"]
    with pytest.raises(ValueError, match="other numbers of images"):
        standings("AB", {"A": "101", "B": "10"}, {})
