"""Attacks of the suites held against each other: a weaker one that beats a stronger one is a doubt."""

from __future__ import annotations

import numpy as np
import pytest

from benchmark.evaluation import indicators as compare
from benchmark.evaluation.indicators import Ran
from benchmark.specs.threat import AttackSpec, ThreatModel

LINF, N = ThreatModel(norm="Linf", eps=0.1), 100


def ran(attack: str, broke: int, eps: float = 0.1, norm: str = "Linf", first: int = 0, **more) -> Ran:
    """An attack that broke `broke` images from image `first` on."""
    hit = np.zeros(N, dtype=bool)
    hit[first : first + broke] = True
    return Ran(AttackSpec(attack=attack, norm=norm, eps=eps), hit, more.get("remaining", {}), more.get("warnings", ()))


def auto(broke: int, ce: int | None = None, before_square: int | None = None, **more) -> Ran:
    left = N - broke
    parts = {"apgd-ce": left if ce is None else ce, "fab-t": left if before_square is None else before_square}
    return ran("autoattack", broke, remaining={**parts, "square": left}, **more)


RIGHT = np.ones(N, dtype=bool)


def suite_doubts(*attacks: Ran, objections: tuple[str, ...] = ()) -> set[str]:
    return {s.name for s in compare.suite_indicators(list(attacks), RIGHT, objections) if not s.sound}


def test_suites_that_agree_raise_no_doubt_and_make_every_comparison() -> None:
    suite = [auto(60), ran("fgsm", 40), ran("pgd", 55), ran("cw", 30, eps=0.5, norm="L2")]
    assert suite_doubts(*suite) == set()
    assert [s.name for s in compare.suite_indicators(suite, RIGHT)] == [
        "AutoAttack's own flags", "white-box beats black-box", "AutoAttack beats the other attacks",
        "many steps beat one", "PGD agrees with APGD",
    ]  # fmt: skip
    assert not [*compare.suite_indicators([ran("cw", 3)], RIGHT)]


def test_autoattacks_warnings_and_objections_are_doubts() -> None:
    assert suite_doubts(auto(60, warnings=("there are 3 points with zero gradient!",))) == {"AutoAttack's own flags"}
    assert suite_doubts(auto(60), objections=("it seems to be a randomized defense!",)) == {"AutoAttack's own flags"}


@pytest.mark.parametrize(("gain", "expected"), [(1, False), (2, True)])
def test_square_after_the_white_box_parts(gain, expected) -> None:
    attack = auto(60, ce=40 + gain, before_square=40 + gain)
    assert ("white-box beats black-box" in suite_doubts(attack)) is expected


@pytest.mark.parametrize(("more", "expected"), [(1, False), (2, True)])
def test_weaker_attacks_that_break_what_stronger_ones_left(more, expected) -> None:
    beaten = suite_doubts(auto(60), ran("pgd", 10, first=50 + more))
    assert ("AutoAttack beats the other attacks" in beaten) is expected
    steps = suite_doubts(ran("pgd", 60), ran("fgsm", 10, first=50 + more))
    assert ("many steps beat one" in steps) is expected
    smaller = suite_doubts(auto(60, eps=0.3), ran("pgd", 10, eps=0.1, first=50 + more))
    assert ("AutoAttack beats the other attacks" in smaller) is expected, "a smaller ball lies in the larger one"
    assert suite_doubts(auto(60, eps=0.1), ran("pgd", 90, eps=0.3)) == set(), "a larger ball may break more"
    assert suite_doubts(auto(60), ran("cw", 90, norm="L2")) == set(), "another norm is not compared"


@pytest.mark.parametrize(("gap", "expected"), [(10, False), (11, True)])
def test_apgd_far_below_pgd_is_a_doubt(gap, expected) -> None:
    assert ("PGD agrees with APGD" in suite_doubts(auto(60, ce=45), ran("pgd", 55 - gap))) is expected


def test_an_example_that_every_attack_missed_is_a_doubt_by_itself() -> None:
    probed = np.zeros(N, dtype=bool)
    probed[[3, 70]] = True
    suite = [ran("pgd", 60), ran("fgsm", 5), ran("pgd", N, eps=0.3), ran("cw", N, norm="L2")]
    missed = compare.probes_find_nothing_new(suite, probed, LINF)
    assert missed is not None
    assert not missed.sound
    assert missed.measured.endswith("left there: 1")
    probed[70] = False
    known = compare.probes_find_nothing_new(suite, probed, LINF)
    assert known is not None
    assert known.sound
    assert compare.probes_find_nothing_new(suite[2:], probed, LINF) is None
