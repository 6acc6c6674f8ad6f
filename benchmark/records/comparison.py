"""Order two rows on the same images.

Verdicts are strings of 1 and 0, one digit an image. An order needs two answers. `mcnemar`: would these two networks differ in
the same way on other images? It says nothing of the next training. `over_seeds_and_images`: would the two methods, on other
images and with other seeds?
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import binomtest

from benchmark.records.study_table import Difference, contrast

ERROR = 0.05  # of one number of a board: the chance that images and seeds alone make any of its orders


def mcnemar(first: Sequence[int] | str, second: Sequence[int] | str) -> float:
    """Return the two-sided p-value of McNemar's exact test: each wins equally often on the images where the two differ.

    Raise a ValueError for verdicts of different numbers of images.
    """
    pairs = list(zip(first, second, strict=True))
    wins, losses = sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)  # type: ignore[operator]
    return float(binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0


def over_seeds_and_images(first: Sequence[str], second: Sequence[str], error: float) -> Difference | None:
    """Return the difference of two mean shares of right verdicts, `first` minus `second`, with its interval at 1 - `error`.

    Each string is one training; all are of the same images. None where either side has a single training.

    Let v_si = m + a_s + b_i + c_si be the verdict of training s on image i: seeds and images are drawn, c is what remains.
    The variance of the difference has three parts. Images: the variance over i of one row's mean verdict minus the other's,
    over the number of images; this is paired, as the rows share the images. Seeds, for each row: the variance over s of the
    share of right images, over the number of trainings; equal seeds of two methods have nothing in common. Each part's
    estimate includes c's share, so their sum counts it more than once and the interval is rather too wide. The three are
    added as in Welch's test, degrees of freedom by Satterthwaite, no standard deviation below one image's share.

    The error rate is that of Student's approximation: two rows of equal method are told apart with probability `error` or
    less (tests/records/test_paired.py counts). McNemar's test on single trainings errs far more often.

    Raise a ValueError for verdicts of different numbers of images.
    """
    a, b = (np.array([[int(digit) for digit in training] for training in trainings], float) for trainings in (first, second))
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"verdicts of {a.shape[1]} and of {b.shape[1]} images")
    by_image = a.mean(axis=0) - b.mean(axis=0)
    samples = [a.mean(axis=1).tolist(), b.mean(axis=1).tolist(), (by_image - by_image.mean()).tolist()]
    return contrast((1, -1, 1), samples, error, 1 / a.shape[1])


def better(images: tuple[str, str], seeds: tuple[Sequence[str], Sequence[str]] | None, comparisons: int) -> int:
    """Return 1 where the first of two rows is shown to be better, -1 where the other is, 0 where no order is shown.

    Both tests must reject at ERROR divided by all `comparisons` by a number (Bonferroni). So any false order by it has a
    chance of at most ERROR.

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
    difference = over_seeds_and_images(*seeds, error)
    return sign if difference is not None and difference.shown and difference.estimate * sign > 0 else 0
