"""The bounds that smoothing rests on, against binomial tails in whole numbers: rounded down, always."""

from __future__ import annotations

import math
from fractions import Fraction
from statistics import NormalDist

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from searched import examples

from benchmark.certificates import smoothing
from benchmark.certificates.smoothing import clopper_pearson_below, radius_below


def exceeds(count: int, n: int, q: float, alpha: float) -> bool:
    """Whether P(Binomial(n, q) >= count) > alpha, in whole numbers: exact."""
    a, b = Fraction(q).as_integer_ratio()
    tail = sum(math.comb(n, i) * a**i * (b - a) ** (n - i) for i in range(count, n + 1))
    return tail * Fraction(alpha).denominator > Fraction(alpha).numerator * b**n


@given(st.integers(1, 120), st.floats(0, 1), st.floats(1e-6, 0.999))
@settings(max_examples=examples(150), deadline=None)
def test_the_bound_is_never_above_clopper_pearson_and_hardly_below(n, share, alpha) -> None:
    count = round(share * n)
    bound = clopper_pearson_below(count, n, alpha)
    if count == 0:
        assert bound == 0
        return
    assert not exceeds(count, n, bound, alpha)
    assert exceeds(count, n, min(1.0, bound * (1 + 1e-7)), alpha)


@pytest.mark.parametrize(("count", "n"), [(4000, 4000), (3985, 4000), (1, 2), (100_000, 100_000)])
def test_the_bound_of_many_samples_is_never_above_clopper_pearson(count, n) -> None:
    for alpha in (0.001, 0.001 / 6, 1e-9):
        assert not exceeds(count, n, clopper_pearson_below(count, n, alpha), alpha)


def test_a_quantile_that_its_tail_contradicts_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(smoothing.stats.beta, "ppf", lambda *_: 0.9)
    with pytest.raises(ArithmeticError, match="too large"):
        clopper_pearson_below(50, 101, 0.0123)


@given(st.floats(0, 1 - 1e-12), st.floats(1e-3, 10))
@settings(deadline=None)
def test_the_radius_is_rounded_down(p, sigma) -> None:
    radius = radius_below(p, sigma)
    assert radius == 0 if p <= 0.5 else 0 < radius < sigma * NormalDist().inv_cdf(p)


@pytest.mark.parametrize(("count", "n", "alpha"), [(-1, 4, 0.1), (5, 4, 0.1), (0, 0, 0.1), (1, 2, 0.0), (1, 2, 1.0)])
def test_impossible_counts_and_levels_are_refused(count, n, alpha) -> None:
    with pytest.raises(ValueError, match="no lower bound for"):
        clopper_pearson_below(count, n, alpha)
