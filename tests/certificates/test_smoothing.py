"""Randomized smoothing compared with exact results: binomial tails, linear classifiers, the worst probability, early stopping."""

from __future__ import annotations

import math
from fractions import Fraction
from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest
from searched import examples
from stages import resumable
from torch import nn

from benchmark.certificates import smoothing
from benchmark.certificates.smoothing import (
    ABSTAIN,
    Smoothed,
    certify_by_looks,
    clopper_pearson_below,
    radius_below,
    schedule,
    smooth,
)
from benchmark.runtime.errors import BenchmarkError


def exceeds(count: int, n: int, q: float, alpha: float) -> bool:
    """Return whether P(Binomial(n, q) >= count) > alpha, exactly, in whole numbers."""
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


@pytest.mark.sweep
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


RULES = {"sigma": 0.25, "n0": 30, "n": 400, "looks": 4, "alpha": 0.1, "seed": 0}


class Computes(nn.Module):
    """A model that is a function; it counts the images that it gets."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function, self.count = function, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += len(x)
        return self.function(x)


def two_sides(weight: torch.Tensor, threshold: float) -> nn.Module:
    """Class 1 where <w, x> > t, else class 0: f and its smoothed version agree, and the radius is |<w, x> - t| / ||w||."""

    def logits(x: torch.Tensor) -> torch.Tensor:
        side = x.flatten(1) @ weight - threshold
        return torch.stack((-side, side), 1)

    return Computes(logits)


def fixed(*logits: float) -> nn.Module:
    return Computes(lambda x: torch.tensor(logits).expand(len(x), -1))


def violation(p: float, sizes: tuple[int, ...], level: float) -> float:
    """Return the exact probability that any look's bound at `level` exceeds p, the worst case for a stopping rule."""
    alive, drawn, lost = np.array([1.0]), 0, 0.0
    for size in sizes:
        alive = np.convolve(alive, binom.pmf(np.arange(size - drawn + 1), size - drawn, p))
        over = np.array([clopper_pearson_below(count, size, level) > p for count in range(size + 1)])
        lost, drawn = lost + alive[over].sum(), size
        alive[over] = 0
    return lost


def test_no_stopping_rule_exceeds_alpha_at_the_worst_p() -> None:
    """The failure probability peaks just below each value that a bound can take: try all, without sampling."""
    sizes, alpha = schedule(64, 4), 0.1
    worst = [clopper_pearson_below(count, m, alpha / 4) * (1 - 1e-12) for m in sizes for count in range(1, m + 1)]
    largest = max(violation(p, sizes, alpha / 4) for p in worst)
    assert 0.4 * alpha < largest <= alpha  # the union bound is not so coarse that the test is vacuous
    assert max(violation(p, sizes, alpha) for p in worst) > alpha  # without the split it would fail


@given(st.lists(st.floats(0, 1), min_size=5, max_size=5), st.lists(st.floats(0.01, 0.9), min_size=1, max_size=4))
@settings(deadline=None)
def test_stopping_early_loses_no_requested_radius(shares, radii) -> None:
    sizes, sigma, alpha = schedule(256, 5), 0.25, 0.01

    def hits():
        share = iter(shares)
        return lambda m: round(next(share) * m)

    stopped = certify_by_looks(hits(), sizes, radii, sigma=sigma, alpha=alpha)
    whole = certify_by_looks(hits(), sizes, [*radii, 1e9], sigma=sigma, alpha=alpha)  # 1e9 itself is out of reach
    draw, count, seen = hits(), 0, []
    for before, size in zip((0, *sizes), sizes, strict=False):
        count += draw(size - before)
        seen.append(radius_below(clopper_pearson_below(count, size, alpha / 5), sigma))
    for radius in radii:
        assert (stopped.radius >= radius) == (max(seen) >= radius)
    assert (stopped.radius > 0) == (whole.radius > 0) == (max(seen) > 0)
    assert stopped.radius in seen or stopped.radius == 0
    assert stopped.radius == radius_below(clopper_pearson_below(stopped.count, stopped.samples, alpha / 5), sigma)


def test_sampling_stops_when_all_is_settled() -> None:
    sizes = schedule(4000, 6)
    assert sizes == (125, 250, 500, 1000, 2000, 4000)
    every = certify_by_looks(lambda m: m, sizes, (0.1, 0.5), sigma=0.25, alpha=0.001)
    assert (every.drawn, every.count, every.samples) == (500, 500, 500)
    assert certify_by_looks(lambda m: 0, sizes, (0.1, 0.5), sigma=0.25, alpha=0.001).drawn == 2000
    assert certify_by_looks(lambda m: m, sizes, (9.0,), sigma=0.25, alpha=0.001).drawn == 125


def linear_trials(count: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A classifier, images at radii from 0 to 3 deviations of the noise from its boundary, and those radii."""
    weight = torch.randn(6, generator=torch.Generator().manual_seed(3))
    model = two_sides(weight, 0.5 * float(weight.sum()))
    radius = torch.linspace(0, 3 * RULES["sigma"], count)
    along = 0.5 + radius[:, None] * weight / weight.norm() * torch.where(torch.arange(count) % 2 == 0, 1, -1)[:, None]
    return model, along.reshape(count, 1, 2, 3), radius.double()


def wrong(result: Smoothed, model: nn.Module, images: torch.Tensor, truth: torch.Tensor) -> int:
    """Count images with a false class or radius, up to float32 rounding of the images."""
    answered = result.prediction != ABSTAIN
    return int((answered & ((result.prediction != model(images).argmax(1)) | (result.radius > truth + 1e-6))).sum())


@pytest.mark.slow
def test_radii_of_linear_classifiers_fail_no_more_often_than_claimed(monkeypatch) -> None:
    model, images, truth = linear_trials(600)
    radii = [float(r) for r in torch.linspace(0.02, 0.75, 40)]
    result = smooth(model, images, range(600), radii, **RULES)
    assert binomtest(wrong(result, model, images, truth), 600, RULES["alpha"], alternative="greater").pvalue > 1e-3
    assert (result.radius > 0.5 * truth)[(truth > 0.2) & (truth < 0.4)].double().mean() > 0.9
    monkeypatch.setattr(smoothing, "clopper_pearson_below", lambda count, n, alpha: min(count / n, 1 - 1e-9))
    naive = smooth(model, images, range(600), radii, **RULES)
    assert binomtest(wrong(naive, model, images, truth), 600, RULES["alpha"], alternative="greater").pvalue < 1e-3


def test_nothing_is_certified_on_a_boundary_between_equal_classes_and_for_tied_logits() -> None:
    grey, rules = torch.full((1, 1, 2, 2), 0.5), RULES | {"alpha": 0.001}
    thirds = Computes(lambda x: x.flatten(1)[:, :3])  # the largest of three pixels of equal distribution
    for model in (two_sides(torch.ones(4), 2.0), fixed(1.0, 1.0, 0.0), thirds):
        result = smooth(model, grey, [0], [0.1], **rules)
        assert (result.prediction.item(), result.radius.item()) == (ABSTAIN, 0)
    assert smooth(fixed(1.0, 1.0), grey, [0], [0.1], **rules).count.item() == 0
    assert smooth(fixed(0.0, 1.0, 0.0), grey, [0], [0.1], **rules).prediction.item() == 1


def same(a: Smoothed, b: Smoothed, index=slice(None)) -> bool:
    return all(torch.equal(tensor, vars(b)[name][index]) for name, tensor in vars(a).items())


def test_results_depend_on_seed_and_index_alone() -> None:
    model, images, _ = linear_trials(12)
    result = smooth(model, images, range(12), [0.1, 0.25], **RULES)
    assert same(smooth(model, images, range(12), [0.1, 0.25], batch_size=7, **RULES), result)
    assert same(smooth(model, images[[9, 2]], [9, 2], [0.1, 0.25], **RULES), result, torch.tensor([9, 2]))
    assert not same(smooth(model, images, range(12), [0.1, 0.25], **RULES | {"seed": 1}), result)
    assert len(smooth(model, images[:0], [], [0.1], **RULES).radius) == 0


def test_noise_is_independent_of_batches_unclipped_and_of_deviation_sigma() -> None:
    grey, drawn, logits = torch.full((2, 1, 2, 2), 0.5), [], two_sides(torch.ones(4), 2.0)
    for size in (400, 7):
        batches: list[torch.Tensor] = []
        model = Computes(lambda x, batches=batches: batches.append(x) or logits(x))
        smooth(model, grey, [0, 5], [9.0], batch_size=size, **RULES)
        drawn.append(torch.cat(batches))
    assert torch.equal(*drawn)
    half = len(drawn[0]) // 2
    assert not torch.equal(drawn[0][:half], drawn[0][half:])
    noise = drawn[0] - 0.5
    assert noise.min() < -0.5
    assert noise.max() > 0.5
    assert noise.std().item() == pytest.approx(RULES["sigma"], rel=0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(({"sigma": sigma}, "sigma") for sigma in (0.0, -1.0, math.nan, math.inf)),
        *(({"alpha": alpha}, "alpha") for alpha in (0.0, 1.0)),
        ({"n0": 0}, "n0"),
        *((change, "n and looks") for change in ({"n": 0}, {"looks": 0}, {"n": 4, "looks": 4})),
        ({"batch_size": 0}, "batch_size"),
        ({"indices": [0, 1]}, "2 indices for 1 images"),
    ],
)
def test_bad_numbers_are_refused(change, message) -> None:
    arguments = {"images": torch.zeros(1, 1, 2, 2), "indices": [0], "radii": [0.1], **RULES, **change}
    with pytest.raises(ValueError, match=message):
        smooth(two_sides(torch.ones(4), 2.0), **arguments)


def test_logits_that_are_not_finite_even_outside_the_box_stop_with_the_image() -> None:
    root = Computes(lambda x: x.flatten(1).sqrt())  # finite on images of [0, 1] alone
    for model in (fixed(0.0, math.nan), root):
        with pytest.raises(BenchmarkError, match=r"not finite .* evaluation image 7 under noise .* outside \[0, 1\]"):
            smooth(model, torch.full((1, 1, 2, 2), 0.5), [7], [0.1], **RULES)


def test_the_stage_resumes_after_it_was_killed(tmp_path, monkeypatch) -> None:
    from benchmark.specs.track import SmoothingSpec
    from benchmark.steps import smooth as stage

    monkeypatch.setattr(stage, "BLOCK", 5)
    model, images, _ = linear_trials(12)
    labels = torch.zeros(len(images), dtype=torch.long)
    columns = resumable(stage.smoothed_columns, "smooth", images, labels, SmoothingSpec(**RULES), tmp_path)
    whole = columns(model, "whole")

    def killed(x: torch.Tensor) -> torch.Tensor:
        if dying.count > 3500:
            raise KeyboardInterrupt
        return model(x)

    dying, again = Computes(killed), Computes(model)
    with pytest.raises(KeyboardInterrupt):
        columns(dying, "killed")
    resumed = columns(again, "killed")
    assert list(resumed) == list(whole)
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)
    assert 0 < again.count < int(whole["smoothed_spent"].sum())
