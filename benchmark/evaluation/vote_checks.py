"""Are the votes of a smoothed model what its certificate takes them for: of a function, under noise that nobody knew?

Clopper and Pearson's bound is of independent votes. A network rebuilt from known layers gives no others. A model that runs
as its author wrote it may let what it was asked beside or before an image move an answer, which asked_again.py looks for, or
know the track's seed and so the noise to come. So other processes with the same model, which have seen nothing of the voting,
are asked about new copies, whose noise comes of the operating system's randomness (`check_radii`).

Whoever knows the noise of the votes knows the images behind them, and could, with a memory, answer new copies as it did
those; and from several copies of one image it could tell which belong together. So each of k processes is asked nothing
else, and for one copy an image. Let the n images' radii be r_i. If they hold, a copy of image i falls on the certified class
with probability at least p_i = Phi(r_i / sigma). So each image's hits are few with at most the binomial's probability. Those
of all images together are at most a share q of the k n copies, q below the mean p of the p_i, with probability at most
exp(-k n (q ln(q / p) + (1 - q) ln((1 - q) / (1 - p)))) (Hoeffding 1963, theorem 1, which needs no equal p_i).

The new noise differs from run to run so that no model can know it; what a run writes does not.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch
from scipy import special, stats
from torch import nn

from benchmark.runtime.errors import BenchmarkError
from benchmark.verdicts.prediction import logits

CHANCE = 1e-6  # of refusing votes that are sound, by the new noise


def check_radii(
    spares: Sequence[Callable[[], AbstractContextManager[nn.Module]]],
    images: torch.Tensor,
    predictions: torch.Tensor,
    radii: torch.Tensor,
    *,
    sigma: float,
    batch_size: int,
    row: str,
) -> None:
    """Holds the radii (n,) and classes (n,) of images (n, c, h, w) against votes under noise that nobody knew.

    Args:
        spares: the same model, each in a process of its own that has been asked nothing; entered one after another.

    Raises:
        BenchmarkError: new noise hits the certified classes too rarely.
    """
    certified = radii > 0
    if not certified.any():
        return
    clean, classes = images[certified.to(images.device)].cpu().double(), predictions[certified].cpu()
    hits = torch.zeros(len(clean), dtype=torch.int64)
    for spare in spares:
        generator = torch.Generator().manual_seed(secrets.randbits(63))
        order = torch.randperm(len(clean), generator=generator)
        noise = torch.randn(clean.shape, generator=generator, dtype=torch.float64)
        copies = (clean + sigma * noise).float()[order].to(images.device)
        with spare() as model:
            hits[order] += logits(model, copies, batch_size).argmax(1).cpu() == classes[order]
    _as_often(hits, len(spares), torch.special.ndtr(radii[certified].cpu() / sigma), row)


def _as_often(hits: torch.Tensor, copies: int, promised: torch.Tensor, row: str) -> None:
    """Hits (n,) of so many copies of each; `promised` (n,): the least probability of a hit that its radius stands for."""
    counts, least = hits.numpy(), promised.numpy()
    asked = copies * len(counts)
    of_one = np.minimum(1, 2 * len(counts) * stats.binom.cdf(counts, copies, least))
    share, mean = counts.sum() / asked, least.mean()
    away = special.rel_entr(share, mean) + special.rel_entr(1 - share, 1 - mean)
    of_all = 2 * math.exp(-asked * away) if share < mean else 1.0
    if min(of_all, of_one.min()) >= CHANCE:
        return
    if of_all < CHANCE:
        due, there, what = copies * least.sum(), counts.sum(), "its smoothed radii stand"
    else:
        worst = int(of_one.argmin())
        asked, due, there, what = copies, copies * least[worst], counts[worst], "the smoothed radius of an image stands"
    raise BenchmarkError(
        f"{row}: {what} for at least {due:.0f} of {asked} votes on the certified class, and under noise that was not known "
        f"beforehand there are {there}; chance gives so few with a probability below {CHANCE:g}"
    )
