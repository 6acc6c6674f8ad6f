"""Shares of images with their 95% intervals."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

from benchmark.results.proportion import Proportion


def proportion(hits: np.ndarray) -> Proportion:
    """Share of true values with its 95% Wilson score interval."""
    return Proportion.of(int(np.count_nonzero(hits)), len(hits))


def mean_proportion(right: np.ndarray) -> Proportion:
    """Share of true values among copies (m, n) of n images, with a 95% interval that takes the images, not the copies, as
    independent: Wilson's for n. An image's share of right copies lies in [0, 1], so its variance is at most p (1 - p),
    that of a single verdict.
    """
    n, share, z = right.shape[1], np.count_nonzero(right) / right.size, float(ndtri(0.975))
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * np.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2) / (1 + z * z / n)
    low, high = min(share, max(0.0, float(middle - half))), max(share, min(1.0, float(middle + half)))
    return Proportion(value=share, low=low, high=high, count=int(np.count_nonzero(right)), n=right.size)
