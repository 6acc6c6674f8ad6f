"""Randomized smoothing (Cohen, Rosenfeld and Kolter 2019, "Certified Adversarial Robustness via Randomized Smoothing").

The smoothed classifier g of a model f returns the class that f most often returns on x + noise, noise ~ N(0, sigma^2 I) on
all of R^d (not clipped to the box). Theorem 1: if f returns class c with probability at least p > 1/2 under the noise, then
g(x + d) = c for every d with ||d||_2 < sigma Phi^-1(p). f is any function: here the argmax of the float32 network, where a
tied largest logit counts for no class. Votes are independent where f is a function that was chosen without knowledge of the
noise, whose seed is public; evaluation/asked_again.py votes again under new noise (`check_radii`). `smooth` is the paper's
CERTIFY with looks. Like PREDICT, it returns g(x) with the same probability. Where p <= 1/2 it abstains; PREDICT can answer.

Looks. n0 samples choose the class c; the later samples are independent of them. Fix sizes m_1 < ... < m_K beforehand, and
let S_k be the number of the first m_k later samples that fall on c. Given c, S_k is binomial(m_k, p), so its one-sided
Clopper-Pearson bound L_k at level alpha / K exceeds p with probability at most alpha / K. By a union over k, with
probability at least 1 - alpha no L_k exceeds p. On that event the radius of every look holds. So the rule may stop at any
look for any reason and return any radius seen. Ours stops when all requested radii are certified, or when the next one could
not be reached even if all remaining samples fell on c.

Floating point. Images are exact in float64. Noise is drawn, scaled and added in float64, and the sum is rounded to float32,
which is part of f. Not covered: the noise is pseudo-random and takes finitely many values. Jin et al. 2022 ("Getting a-Round
Guarantees") and Voracek and Hein 2023 ("Sound Randomized Smoothing in Floating-Point Arithmetics") build models for which
floating-point smoothing gives a wrong radius.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import torch
from scipy import special, stats
from torch import nn

from benchmark.runtime.errors import BenchmarkError

ABSTAIN = -1
DOWN = 1 - 1e-9  # rounds down by far more than the relative error of scipy's quantiles


@dataclass(frozen=True)
class Smoothed:
    """Results of sampling the smoothed classifier at n images: (n,) each, int64 except `radius`."""

    prediction: torch.Tensor  # the smoothed class, or ABSTAIN if the radius is 0
    radius: torch.Tensor  # float64, l2, pixels
    candidate: torch.Tensor  # the class that the first n0 samples chose
    count: torch.Tensor  # how many of the next `samples` fell on it, at the look that gave the radius
    samples: torch.Tensor
    spent: torch.Tensor  # all samples drawn, including n0


@dataclass(frozen=True)
class Look:
    """A radius in pixels, the `count` of `samples` that prove it, and the number of samples `drawn` in the end."""

    radius: float
    count: int
    samples: int
    drawn: int


def guarantee(sigma: float, alpha: float) -> str:
    return (
        f"With probability at least {1 - alpha:.10g} over the noise drawn, which the model was made without knowing, for "
        "each image by itself (not for all jointly), the smoothed classifier (the class that the model most often returns "
        f"under Gaussian noise of deviation {sigma:g}) returns the same class for every image within l2 distance r (pixels "
        "in [0, 1]). Proven for Gaussian noise in real arithmetic; the noise drawn is pseudo-random and in floating point."
    )


def smooth(
    model: nn.Module,
    images: torch.Tensor,
    indices: Sequence[int],
    radii: Sequence[float],
    *,
    sigma: float,
    n0: int,
    n: int,
    looks: int,
    alpha: float,
    seed: int,
    batch_size: int = 1000,
) -> Smoothed:
    """Return certified l2 radii of the smoothed model.

    Guarantee: with probability at least 1 - alpha, for each image by itself, the smoothed classifier returns `prediction`
    for every image within `radius` of it.

    Args:
        model: images (b, c, h, w) to logits (b, classes).
        images: (n, c, h, w) in [0, 1].
        indices: a non-negative number for each image; `seed` and it give the image's own stream of noise.
        radii: in pixels; sampling of an image stops when it is settled which of them it reaches.
        sigma: standard deviation of the noise, in pixels.
        n0, n: samples to choose the class, and the most samples to bound its probability.
        looks: number of looks at the bound, after n, n/2, n/4, ... samples.
        alpha: the largest probability of a false radius, for each image.

    Raises:
        ValueError: a number is out of its range, or there is not one index for each image.
        BenchmarkError: a logit is not finite.
    """
    if len(indices) != len(images):
        raise ValueError(f"{len(indices)} indices for {len(images)} images; give one each")
    if n0 < 1 or batch_size < 1 or not 0 < sigma < math.inf:
        raise ValueError(f"n0, batch_size and sigma must be positive, not {n0}, {batch_size} and {sigma}")
    sizes, counts, certified = schedule(n, looks), [], []
    for image, index in zip(images, indices, strict=True):
        votes = partial(_votes, model, image, index, np.random.default_rng([seed, index]), sigma, batch_size)
        candidate = int(votes(n0).argmax())
        hits = partial(_hits, votes, candidate)
        look = certify_by_looks(hits, sizes, radii, sigma=sigma, alpha=alpha)
        prediction = candidate if look.radius > 0 else ABSTAIN
        counts.append((prediction, candidate, look.count, look.samples, n0 + look.drawn))
        certified.append(look.radius)
    predictions, *others = torch.tensor(counts, dtype=torch.int64).reshape(-1, 5).unbind(1)
    return Smoothed(predictions, torch.tensor(certified, dtype=torch.float64), *others)


def schedule(n: int, looks: int) -> tuple[int, ...]:
    """Return the increasing sizes of the looks: ..., n/4, n/2, n, rounded up."""
    if n < 1 or looks < 1 or n < 2 ** (looks - 1):
        raise ValueError(f"n and looks must be positive, and n at least 2^(looks - 1); they are {n} and {looks}")
    return tuple(math.ceil(n / 2**k) for k in reversed(range(looks)))


def certify_by_looks(
    hits: Callable[[int], int], sizes: Sequence[int], radii: Sequence[float], *, sigma: float, alpha: float
) -> Look:
    """Return the largest radius of any look.

    Guarantee: the radius is false with probability at most `alpha` (proof above).

    Args:
        hits: draws that many further samples and returns how many fell on the candidate.
        sizes: increasing numbers of samples at the looks, fixed beforehand.
        radii: sampling stops when it is settled which of these are reached, and whether any radius is.

    Raises:
        ValueError: sigma or alpha is out of range.
    """
    if not (0 < sigma < math.inf and 0 < alpha < 1):
        raise ValueError(f"sigma must be positive and alpha inside (0, 1), not {sigma} and {alpha}")
    level, best, count, drawn = alpha / len(sizes), Look(0.0, 0, 0, 0), 0, 0

    def radius(count: int, samples: int) -> float:
        return radius_below(clopper_pearson_below(count, samples, level), sigma)

    for place, size in enumerate(sizes):
        count, drawn = count + hits(size - drawn), size
        reached = radius(count, size)
        if reached > best.radius or best.radius == 0:
            best = Look(reached, count, size, size)
        open_radii = [r for r in (0.0, *sorted(radii)) if best.radius < r or best.radius == 0]
        at_best = [radius(count + later - drawn, later) for later in sizes[place + 1 :]]
        if not open_radii or not any(reach > 0 and reach >= open_radii[0] for reach in at_best):
            break
    return Look(best.radius, best.count, best.samples, drawn)


@cache
def clopper_pearson_below(count: int, n: int, alpha: float) -> float:
    """Return the one-sided Clopper-Pearson lower bound, rounded down: at most the q with P(Binomial(n, q) >= count) = alpha.

    Guarantee: it exceeds the p of the count's distribution with probability at most alpha.

    Raises:
        ValueError: alpha is outside (0, 1), or not 0 <= count <= n and n >= 1.
        ArithmeticError: the tail probability contradicts scipy's quantile.
    """
    if not (0 < alpha < 1 and 0 <= count <= n and n >= 1):
        raise ValueError(f"no lower bound for {count} of {n} samples at level {alpha}")
    if count == 0:
        return 0.0
    bound = float(stats.beta.ppf(alpha, count, n - count + 1)) * DOWN
    if not special.betainc(count, n - count + 1, bound) <= alpha:
        raise ArithmeticError(f"scipy's beta quantile {bound} for {count} of {n} samples at level {alpha} is too large")
    return bound


def radius_below(p: float, sigma: float) -> float:
    """Return sigma Phi^-1(p) rounded down, or 0 if p <= 1/2."""
    return sigma * float(special.ndtri(p)) * DOWN if p > 0.5 else 0.0


@torch.no_grad()
def _votes(
    model: nn.Module, image: torch.Tensor, index: int, noise: np.random.Generator, sigma: float, batch_size: int, m: int
) -> torch.Tensor:
    """Return how many of the next m noisy copies of one image each class wins: (classes,) int64. A tie is no win."""
    clean, total = image.double().cpu(), torch.zeros(1, dtype=torch.int64)
    for start in range(0, m, batch_size):
        shape = (min(batch_size, m - start), *clean.shape)
        noisy = (clean + sigma * torch.from_numpy(noise.standard_normal(shape))).float()
        logits = model(noisy.to(image.device))
        if not torch.isfinite(logits).all():
            raise BenchmarkError(
                f"the model's logits are not finite (NaN or infinity) for evaluation image {index} under noise of "
                f"deviation {sigma:g}; it must bear pixels somewhat outside [0, 1]"
            )
        first, second = logits.topk(2, dim=1).values.unbind(1)
        winners = logits.argmax(1)[first > second]
        total = total + torch.bincount(winners, minlength=logits.shape[1]).cpu()
    return total


def _hits(votes: Callable[[int], torch.Tensor], candidate: int, m: int) -> int:
    return int(votes(m)[candidate])
