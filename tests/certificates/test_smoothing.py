"""Randomized smoothing against what is known exactly: binomial tails, linear classifiers, the worst probability, early stopping."""

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


RULES = {"sigma": 0.25, "n0": 30, "n": 400, "looks": 4, "alpha": 0.1, "seed": 0}


class TwoSides(nn.Module):
    """Class 1 where <w, x> > t, else class 0: f and its smoothed version agree, and the radius is |<w, x> - t| / ||w||."""

    def __init__(self, weight: torch.Tensor, threshold: float) -> None:
        super().__init__()
        self.weight, self.threshold = weight, threshold

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        side = x.flatten(1) @ self.weight - self.threshold
        return torch.stack((-side, side), 1)


class Seen(TwoSides):
    """Keeps the images that it is shown."""

    def __init__(self) -> None:
        super().__init__(torch.ones(4), 2.0)
        self.images: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.images.append(x)
        return super().forward(x)


class Fixed(nn.Module):
    """The same logits for every image."""

    def __init__(self, *logits: float) -> None:
        super().__init__()
        self.logits = torch.tensor(logits)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits.expand(len(x), -1)


def violation(p: float, sizes: tuple[int, ...], level: float) -> float:
    """The exact probability that any look's bound at `level` exceeds p: the worst that a stopping rule can meet."""
    alive, drawn, lost = np.array([1.0]), 0, 0.0
    for size in sizes:
        alive = np.convolve(alive, binom.pmf(np.arange(size - drawn + 1), size - drawn, p))
        over = np.array([clopper_pearson_below(count, size, level) > p for count in range(size + 1)])
        lost, drawn = lost + alive[over].sum(), size
        alive[over] = 0
    return lost


def test_no_stopping_rule_exceeds_alpha_at_the_worst_p() -> None:
    """The failure probability peaks just below a value that a bound can take: all of those, without sampling."""
    sizes, alpha = schedule(64, 4), 0.1
    worst = [clopper_pearson_below(count, m, alpha / 4) * (1 - 1e-12) for m in sizes for count in range(1, m + 1)]
    found = [violation(p, sizes, alpha / 4) for p in worst]
    assert max(found) <= alpha
    assert max(found) > 0.4 * alpha  # the union is not so coarse that nothing is tested
    assert max(violation(p, sizes, alpha) for p in worst) > alpha  # and without the split it would fail


def test_coverage_with_our_stopping_rule() -> None:
    """Radii asked for stand just above what holds, so that the rule stops at the first look that overshoots."""
    rng, alpha, sigma = np.random.default_rng(0), 0.1, 0.25
    for p in (0.7, 0.93, clopper_pearson_below(395, 400, 0.1 / 5) * (1 - 1e-12)):
        truth = sigma * NormalDist().inv_cdf(p)

        def run(level: float, p=p, truth=truth) -> int:
            radii = (0.9 * truth, truth, 1.001 * truth)
            looks = [certify_by_looks(lambda m: rng.binomial(m, p), schedule(400, 5), radii, sigma=sigma, alpha=level)
                     for _ in range(1500)]  # fmt: skip
            return sum(look.radius > truth for look in looks)

        assert binomtest(run(alpha), 1500, alpha, alternative="greater").pvalue > 1e-3
        assert binomtest(run(5 * alpha), 1500, alpha, alternative="greater").pvalue < 1e-3


@given(st.lists(st.floats(0, 1), min_size=5, max_size=5), st.lists(st.floats(0.01, 0.9), min_size=1, max_size=4))
@settings(deadline=None)
def test_stopping_early_loses_no_radius_asked_for(shares, radii) -> None:
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


def linear_trials(count: int) -> tuple[TwoSides, torch.Tensor, torch.Tensor]:
    """A classifier, images at radii from 0 to 3 deviations of the noise from its boundary, and those radii."""
    rng = torch.Generator().manual_seed(3)
    weight = torch.randn(6, generator=rng)
    model = TwoSides(weight, 0.5 * float(weight.sum()))
    radius = torch.linspace(0, 3 * RULES["sigma"], count)
    along = 0.5 + radius[:, None] * weight / weight.norm() * torch.where(torch.arange(count) % 2 == 0, 1, -1)[:, None]
    return model, along.reshape(count, 1, 2, 3), radius.double()


def wrong(found: Smoothed, model: TwoSides, images: torch.Tensor, truth: torch.Tensor) -> int:
    """Images whose class or radius does not hold (float32 rounding of the images allowed for)."""
    answered = found.prediction != ABSTAIN
    return int((answered & ((found.prediction != model(images).argmax(1)) | (found.radius > truth + 1e-6))).sum())


def test_radii_of_linear_classifiers_fail_no_more_often_than_claimed(monkeypatch) -> None:
    model, images, truth = linear_trials(600)
    radii = [float(r) for r in torch.linspace(0.02, 0.75, 40)]
    found = smooth(model, images, range(600), radii, **RULES)
    assert binomtest(wrong(found, model, images, truth), 600, RULES["alpha"], alternative="greater").pvalue > 1e-3
    assert (found.radius > 0.5 * truth)[(truth > 0.2) & (truth < 0.4)].double().mean() > 0.9
    monkeypatch.setattr(smoothing, "clopper_pearson_below", lambda count, n, alpha: min(count / n, 1 - 1e-9))
    naive = smooth(model, images, range(600), radii, **RULES)
    assert binomtest(wrong(naive, model, images, truth), 600, RULES["alpha"], alternative="greater").pvalue < 1e-3


def test_nothing_is_certified_where_nothing_can_be() -> None:
    """On the boundary, between three equal classes, and for logits that are always tied."""
    grey = torch.full((1, 1, 2, 2), 0.5)
    rules = RULES | {"alpha": 0.001}
    for model in (TwoSides(torch.ones(4), 2.0), Fixed(1.0, 1.0, 0.0), Thirds()):
        found = smooth(model, grey, [0], [0.1], **rules)
        assert found.prediction.item() == ABSTAIN
        assert found.radius.item() == 0
    assert smooth(Fixed(1.0, 1.0), grey, [0], [0.1], **rules).count.item() == 0
    assert smooth(Fixed(0.0, 1.0, 0.0), grey, [0], [0.1], **rules).prediction.item() == 1


class Thirds(nn.Module):
    """The largest of three pixels that are equally distributed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)[:, :3]


def same(a: Smoothed, b: Smoothed, index=slice(None)) -> bool:
    return all(torch.equal(tensor, vars(b)[name][index]) for name, tensor in vars(a).items())


def test_results_depend_on_seed_and_index_alone() -> None:
    model, images, _ = linear_trials(12)
    found = smooth(model, images, range(12), [0.1, 0.25], **RULES)
    assert same(smooth(model, images, range(12), [0.1, 0.25], batch_size=7, **RULES), found)
    assert same(smooth(model, images[[9, 2]], [9, 2], [0.1, 0.25], **RULES), found, torch.tensor([9, 2]))
    assert not same(smooth(model, images, range(12), [0.1, 0.25], **RULES | {"seed": 1}), found)
    assert len(smooth(model, images[:0], [], [0.1], **RULES).radius) == 0


def test_noise_is_the_same_whatever_the_batches_unclipped_and_of_deviation_sigma() -> None:
    grey, drawn = torch.full((2, 1, 2, 2), 0.5), []
    for size in (400, 7):
        model = Seen()
        smooth(model, grey, [0, 5], [9.0], batch_size=size, **RULES)
        drawn.append(torch.cat(model.images))
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
        ({"sigma": 0.0}, "sigma"),
        ({"sigma": -1.0}, "sigma"),
        ({"sigma": math.nan}, "sigma"),
        ({"sigma": math.inf}, "sigma"),
        ({"alpha": 0.0}, "alpha"),
        ({"alpha": 1.0}, "alpha"),
        ({"n0": 0}, "n0"),
        ({"n": 0}, "n and looks"),
        ({"looks": 0}, "n and looks"),
        ({"n": 4, "looks": 4}, "n and looks"),
        ({"batch_size": 0}, "batch_size"),
        ({"indices": [0, 1]}, "2 indices for 1 images"),
    ],
)
def test_bad_numbers_are_refused(change, message) -> None:
    with pytest.raises(ValueError, match=message):
        smooth(**{"model": TwoSides(torch.ones(4), 2.0), "images": torch.zeros(1, 1, 2, 2), "indices": [0], "radii": [0.1], **RULES, **change})  # fmt: skip


def test_logits_that_are_not_finite_stop_with_the_image() -> None:
    with pytest.raises(BenchmarkError, match=r"not finite .* evaluation image 7 under noise"):
        smooth(Fixed(0.0, math.nan), torch.zeros(1, 1, 2, 2), [7], [0.1], **RULES)


class Root(nn.Module):
    """Finite on images of [0, 1] alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1).sqrt()


def test_a_model_that_breaks_outside_the_box_is_told_so() -> None:
    with pytest.raises(BenchmarkError, match=r"bear pixels somewhat outside \[0, 1\]"):
        smooth(Root(), torch.full((1, 1, 2, 2), 0.5), [0], [0.1], **RULES)


def test_the_stage_resumes_where_it_was_killed(tmp_path, monkeypatch) -> None:
    from benchmark.attacks.prediction import Predictions
    from benchmark.runtime.clock import Clock
    from benchmark.specs.rows import load_row
    from benchmark.specs.track import SmoothingSpec
    from benchmark.steps import smooth as stage
    from benchmark.steps.base import Work
    from benchmark.steps.evaluation import Subject

    monkeypatch.setattr(stage, "BLOCK", 5)
    model, images, _ = linear_trials(12)
    row, rules = load_row("digits", "Wong2020Fast-linf"), SmoothingSpec(**RULES)

    def columns(model: nn.Module, name: str) -> dict[str, torch.Tensor]:
        (tmp_path / name).mkdir(exist_ok=True)
        work = Work(row, "smooth", {}, (), tmp_path / name, Clock(tmp_path))
        labels = torch.zeros(len(images), dtype=torch.long)
        clean = Predictions(labels, torch.ones(len(labels)))
        subject = Subject(model, images, labels, row.track.evaluation.batch_size, clean)
        return stage.smoothed_columns(work, subject, rules)

    whole = columns(model, "whole")

    class Killed(TwoSides):
        shown = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.shown += len(x)
            if self.shown > 3500:
                raise KeyboardInterrupt
            return super().forward(x)

    with pytest.raises(KeyboardInterrupt):
        columns(Killed(model.weight, model.threshold), "killed")
    again = Seen()
    again.weight, again.threshold = model.weight, model.threshold
    found = columns(again, "killed")
    assert list(found) == list(whole)
    assert all(torch.equal(found[name], whole[name]) for name in whole)
    assert 0 < sum(map(len, again.images)) < int(whole["smoothed_spent"].sum())
