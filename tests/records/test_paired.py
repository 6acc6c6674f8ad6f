"""Two rows on the same images: what the tests find, and how often they find what is not there."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom
from seeds_study import verdicts

from benchmark.records.comparison import better, mcnemar, over_seeds_and_images


def trainings(rng: np.random.Generator, images: np.ndarray, spread: float, skill: float = 0.5) -> list[str]:
    """Five trainings of one method: image i is right where skill + seed's + image's + their own part are above 0."""
    seeds, rest = rng.normal(0, spread, (5, 1)), rng.normal(0, 0.5, (5, len(images)))
    return ["".join("01"[int(margin > 0)] for margin in row) for row in skill + seeds + images + rest]


def test_the_interval_adds_the_spread_of_images_and_of_seeds() -> None:
    one, other = [verdicts(80), verdicts(82), verdicts(78)], [verdicts(60), verdicts(61), verdicts(59)]
    difference = over_seeds_and_images(one, other, 0.05)
    assert difference is not None
    assert difference.estimate == pytest.approx(0.2)
    by_image = np.mean([[int(v) for v in t] for t in one], 0) - np.mean([[int(v) for v in t] for t in other], 0)
    variance = by_image.var(ddof=1) / 100 + 0.02**2 / 3 + 0.01**2 / 3
    assert 1.96 * variance**0.5 < difference.high - difference.estimate < 2.3 * variance**0.5
    assert over_seeds_and_images(one, other[:1], 0.05) is None
    with pytest.raises(ValueError, match="3 and of 2 images"):
        over_seeds_and_images(["111"], ["11"], 0.05)


@pytest.mark.sweep
@pytest.mark.parametrize("spread", [0.0, 0.2])
def test_equal_methods_are_ordered_no_more_often_than_stated(spread) -> None:
    """Other images and other seeds in every trial; McNemar's test on one training each is no such promise."""
    rng, trials = np.random.default_rng(0), 600
    crossed = ordered = single = 0
    for _ in range(trials):
        images = rng.normal(0, 1, 100)
        one, other = (trainings(rng, images + rng.normal(0, 0.5, 100), spread) for _ in range(2))
        difference = over_seeds_and_images(one, other, 0.05)
        crossed += difference is not None and difference.shown
        ordered += better((one[0], other[0]), (one, other), 1) != 0
        single += mcnemar(one[0], other[0]) <= 0.05
    assert ordered <= crossed <= binom.ppf(0.999, trials, 0.05)
    assert (single > 0.2 * trials) == (spread > 0), "what the seeds are for"


def test_a_difference_beyond_images_and_seeds_is_found_with_its_sign() -> None:
    rng = np.random.default_rng(1)
    images = rng.normal(0, 1, 100)
    strong, weak = trainings(rng, images, 0.1, skill=1.5), trainings(rng, images, 0.1, skill=-1.0)
    assert better((strong[0], weak[0]), (strong, weak), 28) == 1
    assert better((weak[0], strong[0]), (weak, strong), 28) == -1


def test_both_must_say_so() -> None:
    good, bad = verdicts(80), verdicts(60)
    steady, wild = [verdicts(r) for r in (80, 81, 79, 80, 80)], [verdicts(r) for r in (60, 95, 70, 85, 90)]
    assert better((good, bad), None, 1) == 1, "one draw: the images alone"
    assert better((good, bad), (steady, wild), 1) == 0, "the next training may turn it"
    assert better((good, verdicts(79)), (steady, [bad] * 5), 1) == 0, "the rows themselves do not differ"
    assert better((good, bad), ([bad] * 5, steady), 1) == 0, "the trainings differ the other way round"
    assert better((good, verdicts(70)), None, 1) == 1
    assert better((good, verdicts(70)), None, 1000) == 0, "an order among many must be surer"
