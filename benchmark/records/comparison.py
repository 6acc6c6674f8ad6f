"""Two rows on the same images: is one better?

Verdicts are strings of 1 and 0, one place an image. An order of two rows needs two answers. `mcnemar`: would these two
networks differ in the same way on other images? It says nothing of the next training. `over_seeds_and_images`: would the two
methods, on other images too?
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import binomtest

from benchmark.records.study_table import Difference, contrast

ERROR = 0.05  # of a whole board: the chance that any of its orders is made by images and seeds alone


def mcnemar(one: Sequence[int] | str, other: Sequence[int] | str) -> float:
    """Two-sided p-value of McNemar's exact test: of the images on which the two differ, each wins as often as the other.

    A ValueError for verdicts of other numbers of images.
    """
    pairs = list(zip(one, other, strict=True))
    wins, losses = sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)  # type: ignore[operator]
    return float(binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0


def over_seeds_and_images(one: Sequence[str], other: Sequence[str], error: float) -> Difference | None:
    """Difference of the mean shares of right verdicts, `one` minus `other`, with its interval at confidence 1 - `error`.

    Each string is a training; all are of the same images. None where either side has one training alone.

    Let v_si = m + a_s + b_i + c_si be the verdict of training s on image i: seeds and images are drawn, c is what remains.
    The variance of the difference of two rows' means has three parts. Images: the variance over i of the mean over s of
    one row's verdicts minus the other's, over the number of images; the rows share the images, so this is paired. Seeds:
    the variance over s of the share of right images, over the number of trainings, for each row by itself, since equal
    seeds of two methods have nothing in common. Each part's estimate holds c's share too, so their sum counts that more
    than once: the interval is rather too wide. The three are added as in Welch's test, degrees of freedom by Satterthwaite,
    no standard deviation below one image's share.

    The error rate is that of Student's approximation: two rows of equal method are told apart with probability `error` or
    less (tests/records/test_paired.py counts), where McNemar's test on single trainings errs far more often. A ValueError
    for verdicts of other numbers of images.
    """
    a, b = _matrix(one), _matrix(other)
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"verdicts of {a.shape[1]} and of {b.shape[1]} images")
    by_image = a.mean(axis=0) - b.mean(axis=0)
    samples = [a.mean(axis=1).tolist(), b.mean(axis=1).tolist(), (by_image - by_image.mean()).tolist()]
    return contrast((1, -1, 1), samples, error, 1 / a.shape[1])


def better(images: tuple[str, str], seeds: tuple[Sequence[str], Sequence[str]] | None, comparisons: int) -> int:
    """1 where the first of two rows is shown to be better, -1 where the other is, 0 where no order is shown.

    Both tests must say so at ERROR shared out over all `comparisons` of a board (Bonferroni), so that the chance of any
    false order on it is at most ERROR; an order by both tests is false no more often than by either.

    Args:
        images: the verdicts of the two rows' own networks.
        seeds: those of their trainings, or None where a row has but one: then the images decide alone.
    """
    error = ERROR / comparisons
    if mcnemar(*images) > error:
        return 0
    sign = 1 if images[0].count("1") > images[1].count("1") else -1
    if seeds is None:
        return sign
    found = over_seeds_and_images(*seeds, error)
    return sign if found is not None and found.shown and found.estimate * sign > 0 else 0


def _matrix(verdicts: Sequence[str]) -> np.ndarray:
    """Trainings and images to (trainings, images)."""
    digits = [np.frombuffer(training.encode(), np.uint8) for training in verdicts]
    return np.array(digits, dtype=np.float64) - ord("0")
