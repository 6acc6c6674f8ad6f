"""Check that verdicts do not depend on how the model is asked: the same images in other ways, and unseen images.

A model that knows the evaluation images, or notices that it is evaluated, may answer them better than others, or differently
with gradients than without. Unseen images are test images outside the evaluation, and evaluation images with a little noise:
a table of the evaluation images has no entry for either.
"""

from __future__ import annotations

import torch
from scipy.stats import fisher_exact
from torch import nn

from benchmark.attacks.prediction import MIN_ROWS, checked, logits, margins, padded
from benchmark.evaluation.indicators import RADIUS_STEPS, SAME, allowance, indicator
from benchmark.evaluation.probes import after_pgd
from benchmark.records.reliability import FailureIndicator
from benchmark.runtime.errors import BenchmarkError, of_disk_or_gpu, out_of_memory
from benchmark.specs.threat import ThreatModel

ALONE = 200  # images, at most, that are asked one by one
SIZES = 100  # of batches, at most, that are asked between the smallest and the usual one
NOISE = 1 / 510  # half a step of 8-bit pixels
CHANCE = 1e-3  # probability below which a difference between two sets of images counts as real


@torch.no_grad()
def answers(model: nn.Module, images: torch.Tensor, batch_size: int, seed: int) -> dict[str, torch.Tensor]:
    """Return logits (n, classes) of the evaluation images by the way of asking; NaN where an image was not asked that way."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(images), generator=generator).to(images.device)
    back = torch.argsort(order)
    usual = logits(model, images, batch_size)
    alone = torch.full_like(usual, torch.nan)
    for number in torch.linspace(0, len(images) - 1, min(ALONE, len(images))).long().tolist():
        alone[number] = logits(model, images[number : number + 1], 1)[0]
    return {
        "in its batch": usual,
        "in another order": logits(model, images[order], batch_size)[back],
        "in smaller batches": logits(model, images, max(1, batch_size // 3)),
        "alone": alone,
        "beside itself": logits(model, images.repeat_interleave(2, dim=0), batch_size)[1::2],
        "with gradients": _with_gradients(model, usual, images, [*torch.arange(len(images)).split(batch_size)]),
    } | _in_other_sizes(model, usual, images, batch_size, generator)


def _in_other_sizes(
    model: nn.Module, usual: torch.Tensor, images: torch.Tensor, batch_size: int, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Return each image's answer that is furthest from the usual one, over batches of many sizes, as attacks use."""
    between = torch.arange(MIN_ROWS + 1, max(MIN_ROWS + 1, batch_size))
    chosen = between[torch.randperm(len(between), generator=generator)[:SIZES]].tolist()
    starts = torch.randint(len(images), (2, len(chosen)), generator=generator).tolist()
    furthest = {way: usual.clone() for way in ("in a batch of another size", "in a batch of another size, with gradients")}
    for size, *start in zip(chosen, *starts, strict=True):
        batches = [(torch.arange(size) + first) % len(images) for first in start]
        without = logits(model, images[batches[0].to(images.device)], size)
        with_gradients = _with_gradients(model, usual[batches[1]], images, batches[1:])
        for kept, rows, answers in zip(furthest.values(), batches, (without, with_gradients), strict=True):
            for row, answer in zip(rows.tolist(), answers, strict=True):  # NaN compares as False
                if (answer - usual[row]).abs().max() > (kept[row] - usual[row]).abs().max():
                    kept[row] = answer
    return furthest


def _with_gradients(model: nn.Module, usual: torch.Tensor, images: torch.Tensor, batches: list[torch.Tensor]) -> torch.Tensor:
    """Return the logits of batches of rows, computed with gradients; NaN, shaped as `usual`, where torch cannot take any."""
    parts = []
    try:
        with torch.enable_grad():
            for rows in batches:
                given = padded(images[rows.to(images.device)]).requires_grad_()
                parts.append(checked(model(given.clone()), len(given))[: len(rows)].detach().float())
    except RuntimeError as error:
        if out_of_memory(error) or of_disk_or_gpu(error):
            raise
        return torch.full_like(usual, torch.nan)
    return torch.cat(parts)


def depends_on_asking(by_way: dict[str, torch.Tensor], row: str, is_open: bool) -> FailureIndicator:
    """Return whether an image gets logits that differ by more than rounding in another way of asking.

    Raises:
        BenchmarkError: a model of the closed division gives an image another class in such a way.
    """
    usual = by_way["in its batch"]
    scale = SAME * (1 + usual.abs().amax(1))
    worst, largest = "", 0.0
    differing = torch.zeros(len(usual), dtype=torch.bool, device=usual.device)
    for way, other in by_way.items():
        asked = ~other.isnan().any(1)
        gap = torch.where(asked, (other - usual).abs().amax(1), 0.0)
        turned = asked & (other.argmax(1) != usual.argmax(1))
        # rounding turns few images, so more count even where an offset common to all logits makes rounding large
        flipped = turned if turned.sum() > allowance(len(usual)) else turned & (gap > scale)
        if flipped.any() and not is_open:
            image = int(flipped.nonzero()[0])
            raise BenchmarkError(
                f"{row}: image {image} is of class {int(usual[image].argmax())} in its batch and of class "
                f"{int(other[image].argmax())} {way}, {float(gap[image]):.3g} apart in a logit; a model of the closed "
                "division answers for each image by itself, however it is asked"
            )
        differing |= gap > scale
        if float(gap.max()) > largest:
            largest, worst = float(gap.max()), way
    where = f", most of all {worst}" if worst else ""
    words = f"{int(differing.sum())} of {len(usual)} images get logits that differ by more than rounding in another order, in"
    words += f" batches of other sizes, alone, beside a copy or with gradients; by {largest:.3g} at most{where}"
    return indicator("the same answer however asked", words, not differing.any())


def knows_the_images(
    model: nn.Module,
    seen: tuple[torch.Tensor, torch.Tensor],
    unseen: tuple[torch.Tensor, torch.Tensor],
    threat: ThreatModel,
    *,
    batch_size: int,
    seed: int,
) -> list[FailureIndicator]:
    """Return whether the model does better on evaluation images than on others like them, clean and under PGD in `threat`.

    Args:
        seen: the evaluation images (n, c, h, w) and labels (n,); unseen: test images outside the evaluation, and labels.
    """
    images, labels = seen
    clean = [margins(logits(model, x, batch_size), y) > 0 for x, y in (seen, unseen)]
    noise = torch.rand(images.shape, generator=torch.Generator().manual_seed(seed)).to(images.device)
    changed = (images + NOISE * (2 * noise - 1)).clamp(0, 1)
    lost = int((clean[0] & (margins(logits(model, changed, batch_size), labels) <= 0)).sum())
    attacked = after_pgd(model, seed, threat, "margin", RADIUS_STEPS)
    pairs = [zip(x.split(batch_size), y.split(batch_size), strict=True) for x, y in (seen, unseen)]
    withstood = [torch.cat([attacked(*pair)["margin"] > 0 for pair in batches]) for batches in pairs]
    robust = [right & after for right, after in zip(clean, withstood, strict=True)]
    words = f"noise of at most {NOISE:.2g} a pixel turns {lost} of {int(clean[0].sum())} images wrong"
    return [
        _compared("as good on unseen images", clean, "right when clean"),
        _compared("as robust on unseen images", robust, f"right after {RADIUS_STEPS} steps of PGD in {threat.label}"),
        indicator("the same answer nearby", words, lost <= allowance(len(images))),
    ]


def _compared(name: str, right: list[torch.Tensor], words: str) -> FailureIndicator:
    """Apply Fisher's exact test, one-sided: could so many more of the evaluation images be right by chance?"""
    counts = [[int(part.sum()), int((~part).sum())] for part in right]
    chance = float(fisher_exact(counts, alternative="greater").pvalue)
    shares = " and of ".join(
        f"{len(part)} {kind}: {100 * float(part.double().mean()):.1f}%"
        for part, kind in zip(right, ("evaluation images", "others"), strict=True)
    )
    measured = f"{words}, of {shares}; chance gives such a gap with probability {chance:.2g}"
    return indicator(name, measured, chance >= CHANCE)
