"""Are the votes of a smoothed model what its certificate takes them for: of a function, under noise that nobody knew?

Clopper and Pearson's bound is of independent votes. A network rebuilt from known layers gives no others. A model that runs
as its author wrote it may let the images of a batch, or what it was asked before, move an answer, or know the track's seed
and so the noise to come. So another process with the same model, which has seen nothing of the voting, is asked

- some of the very copies again, in other company and order: a function of the image answers alike;
- new copies, whose noise comes of the operating system's randomness: k of each of n images, with radii r_i. If the radii
  hold, a copy of image i falls on the certified class with probability at least p_i = Phi(r_i / sigma). So each image's
  hits are few with at most the binomial's probability. Those of all images together are at most a share q of the k n copies,
  q below the mean p of the p_i, with probability at most exp(-k n (q ln(q / p) + (1 - q) ln((1 - q) / (1 - p))))
  (Hoeffding 1963, theorem 1, which needs no equal p_i).

Which copies, and the new noise, differ from run to run so that no model can know them; what a run writes does not.
"""

from __future__ import annotations

import math
import secrets

import numpy as np
import torch
from scipy import special, stats
from torch import nn

from benchmark.certificates.smoothing import Smoothed
from benchmark.runtime.errors import BenchmarkError
from benchmark.verdicts.prediction import logits

SAME = 1e-4  # as in evaluation/division.py: two passes of one network differ by rounding alone
KEPT = 20  # of an image's copies, on average, that are asked again
FEW = 2  # copies that rounding may turn
NEW = 100  # copies of an image with new noise
CHANCE = 1e-6  # of refusing votes that are sound, by the new noise


class Witness:
    """Keeps some of the noisy copies, each as likely as any other, with the logits that they got.

    Args:
        most: how many are kept.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._generator = torch.Generator().manual_seed(secrets.randbits(63))
        self._kept: tuple[torch.Tensor, ...] = ()

    def __call__(self, noisy: torch.Tensor, answers: torch.Tensor) -> None:
        """Sees copies (b, c, h, w) and the logits (b, classes) that the model gave them."""
        seen = (torch.rand(len(noisy), generator=self._generator), noisy.cpu(), answers.cpu())
        if self._kept:
            seen = tuple(torch.cat(both) for both in zip(self._kept, seen, strict=True))  # type: ignore[assignment]
        least = seen[0].argsort()[: self.most]
        self._kept = tuple(part[least] for part in seen)

    @property
    def copies(self) -> torch.Tensor:
        """In random order."""
        return self._kept[1]

    @property
    def answers(self) -> torch.Tensor:
        return self._kept[2]


def check_votes(
    again: nn.Module,
    images: torch.Tensor,
    found: Smoothed,
    witness: Witness,
    *,
    sigma: float,
    batch_size: int,
    row: str,
) -> None:
    """Holds the votes on images (n, c, h, w), and the radii `found` for them, against `again`: the same model in a process of
    its own that has not voted.

    Raises:
        BenchmarkError: a copy gets another class in other company, or new noise hits the certified classes too rarely.
    """
    certified = found.radius > 0
    new = _with_new_noise(images[certified].cpu(), sigma)
    mixed = torch.cat([witness.copies, new])
    order = torch.randperm(len(mixed), generator=torch.Generator().manual_seed(secrets.randbits(63)))
    answers = logits(again, mixed[order].to(images.device), max(1, batch_size // 2 + 1)).cpu()[order.argsort()]
    repeated, fresh = answers[: len(witness.copies)], answers[len(witness.copies) :]
    _same_classes(witness.answers, repeated, row)
    if len(new):
        hits = (fresh.argmax(1) == found.prediction[certified].repeat_interleave(NEW)).unflatten(0, (-1, NEW)).sum(1)
        _as_often(hits, torch.special.ndtr(found.radius[certified] / sigma), row)


def _with_new_noise(images: torch.Tensor, sigma: float) -> torch.Tensor:
    """(n NEW, c, h, w), the copies of an image one after another."""
    generator = torch.Generator().manual_seed(secrets.randbits(63))
    copies = images.double().repeat_interleave(NEW, dim=0)
    return (copies + sigma * torch.randn(copies.shape, generator=generator, dtype=torch.float64)).float()


def _same_classes(voted: torch.Tensor, repeated: torch.Tensor, row: str) -> None:
    gap = (voted - repeated).abs().amax(1)
    turned = voted.argmax(1) != repeated.argmax(1)
    # rounding turns next to none, however large an offset all logits share
    differing = turned if turned.sum() > FEW else turned & (gap > SAME * (1 + voted.abs().amax(1)))
    if differing.any():
        raise BenchmarkError(
            f"{row}: of {len(voted)} noisy copies that voted, {int(differing.sum())} get another class when a process that "
            f"has not voted is asked, {float(gap.max()):.3g} apart in a logit; what smoothing certifies answers for each "
            "image by itself"
        )


def _as_often(hits: torch.Tensor, promised: torch.Tensor, row: str) -> None:
    """Hits (n,) of NEW copies each; `promised` (n,): the least probability of a hit that the image's radius stands for."""
    counts, least = hits.cpu().numpy(), promised.cpu().numpy()
    of_one = np.minimum(1, 2 * len(counts) * stats.binom.cdf(counts, NEW, least))
    share, mean = counts.sum() / (NEW * len(counts)), least.mean()
    away = special.rel_entr(share, mean) + special.rel_entr(1 - share, 1 - mean)
    of_all = 2 * math.exp(-NEW * len(counts) * away) if share < mean else 1.0
    if min(of_all, of_one.min()) >= CHANCE:
        return
    worst = int(of_one.argmin())
    if of_all < CHANCE:
        due, asked, there, what = NEW * least.sum(), NEW * len(counts), counts.sum(), "its smoothed radii stand"
    else:
        due, asked, there, what = NEW * least[worst], NEW, counts[worst], "the smoothed radius of an image stands"
    raise BenchmarkError(
        f"{row}: {what} for at least {due:.0f} of {asked} votes on the certified class, and under noise that was not known "
        f"beforehand there are {there}; chance gives so few with a probability below {CHANCE:g}"
    )
