"""Check that a model run as its author wrote it is a function: an answer may depend on the question alone.

A model that remembers the clean images could answer an attack's images near them by heart. So some of its questions, chosen
afterwards, are asked again in a fresh process, in other company and another order (`check_answers`). Images that withstood
every attack are attacked again in a process that never sees them clean (`attacked_afresh`). Gradients are compared with the
answers (`false_slopes`). A network rebuilt from this benchmark's layers is a function and needs none of this.

Clopper and Pearson's bound on a smoothed model needs independent votes. A model could know the track's seed, and so the noise
to come; a rebuilt network's weights could be fitted to it. So fresh processes, or the rebuilt network, are asked about new
copies, with noise from the operating system's randomness (`check_radii`).

Guarantee of `check_radii`. Each of k processes sees one copy of each image and nothing else, so that it cannot recognise an
image by several copies. Let the n images' radii be r_i. If they hold, a copy of image i gets the certified class with
probability at least p_i = Phi(r_i / sigma). An image's hits are few with at most the binomial's probability. Those of all
images are at most a share q of the k n copies, q below the mean p of the p_i, with probability at most
exp(-k n (q ln(q / p) + (1 - q) ln((1 - q) / (1 - p)))) (Hoeffding 1963, theorem 1, which needs no equal p_i).

The new noise differs from run to run, so that no model can know it; what a run writes does not.
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

from benchmark.attacks import pgd
from benchmark.attacks.ball import into_ball
from benchmark.attacks.gradients import attackable
from benchmark.attacks.prediction import logits
from benchmark.runtime.errors import BenchmarkError
from benchmark.sandbox.model import Call, SandboxedModel, Slope
from benchmark.specs.threat import ThreatModel

# by which rounding may change an answer, relative to half the spread of its logits
ROUNDING = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
FEW = 0.01  # share of the answers, at least two, that may get another class by rounding
FLAT = 0.05  # share of the answers whose logits may lie closer together than rounding's limit supposes
CHANCE = 1e-6  # probability, over the new noise, of refusing sound votes
COMPANY = 32  # images in a call that asks again
STEPS, STEP = 20, 0.1  # of the new attack, and its step in radii
# Of the check of a gradient, in this order: the shortest and the longest step along it; share of the promised change that the
# answers may miss, since networks have kinks; rounding of a logit, in units of its last place; share of a large gradient's
# length below which a gradient counts as false; smallest number not taken for 0.
ALONG, FURTHEST, MISSED, ROUNDINGS, TINY, LEAST = 1e-3, 0.1, 0.5, 64, 1e-3, 1e-20
Compared = tuple[int, int, int]  # of gradients: how many are false, were compared, and are there


def check_answers(
    again: nn.Module, calls: Sequence[Call], images: torch.Tensor, slopes: Sequence[Slope], *,
    count: int, row: str, is_open: bool,
) -> tuple[torch.Tensor, Compared]:  # fmt: skip
    """Ask again about all images of the first of the calls of a model, which decides, and about `count` of the others.

    Among them it asks about a point beside the image of each gradient in `slopes` (`false_slopes`), which looks like the
    other questions.

    Args:
        again: the same model in a process that has been asked nothing, or nothing about clean images.
        calls: the one that decides, then the others.
        images: (n, c, h, w), the clean evaluation images.
        slopes: gradients that the model gave.

    Returns:
        (n,) bool: images near which a model of the open division gives another answer. As it draws noise, the same calls are
        made again with the same noise. And in the closed division the result of `false_slopes`.

    Raises:
        BenchmarkError: an answer of a model of the closed division differs by more than rounding.
    """
    lost = torch.zeros(len(images), dtype=torch.bool, device=images.device)
    if not is_open:
        if len({call[1].shape[1] for call in calls}) > 1:
            raise BenchmarkError(f"{row}: its logits have another number of classes from call to call; give each image all")
        questions, before = (torch.cat(parts) for parts in zip(*[call[:2] for call in calls], strict=True))
        generator = torch.Generator().manual_seed(secrets.randbits(63))  # unknown to the model
        last = len(calls[0][0])
        others = last + torch.randperm(len(questions) - last, generator=generator)[:count]
        chosen = torch.cat([torch.arange(last), others])
        asked = torch.cat([questions[chosen], beside(slopes)] if slopes else [questions[chosen]])
        order = torch.randperm(len(asked), generator=generator)
        is_clean = _among(asked, images)[order]
        # clean images last: a model that waits for one would then lie about the others again
        parts = [order[~is_clean], order[is_clean]]
        answers = [logits(again, asked[part].to(images.device), COMPANY).cpu() for part in parts if len(part)]
        after = torch.cat(answers)[torch.cat(parts).argsort()]
        compare(before[chosen], after[: len(chosen)], row)
        return lost, false_slopes(slopes, after[len(chosen) :])
    assert isinstance(again, SandboxedModel)
    # calls about clean images last, for the same reason
    for questions, before, seed in sorted(calls, key=lambda call: int(_among(call[0], images).sum())):
        after = again.ask_logits(questions.to(images.device), seed=seed)[0].cpu()
        for question in questions[_differing(before, after)]:
            lost[(images.cpu() - question).flatten(1).norm(dim=1).argmin()] = True
    return lost, (0, 0, 0)


def attacked_afresh(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, threat: ThreatModel, *,
    seed: int, batch_size: int, is_open: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Attack images by PGD from random points of the ball, without a question about their clean versions.

    Args:
        model: in a process that has been asked nothing.
        images: (n, c, h, w), which are still classified correctly; labels: (n,).

    Returns:
        Where PGD ended (n, c, h, w), and its logits (n, classes).
    """
    parts = []
    with torch.random.fork_rng([images.device] if images.device.type == "cuda" else []):
        for x, y in zip(images.split(batch_size), labels.split(batch_size), strict=True):
            attacked = attackable(model, torch.rand_like(x), y)[0] if is_open else model
            moved = pgd.attack(attacked, x, y, threat, seed=seed, steps=STEPS, step_size=STEP * threat.eps)
            moved = into_ball(moved, x, threat, "pgd")
            parts.append((moved, logits(model, moved, batch_size)))
    moved, answers = (torch.cat(part) for part in zip(*parts, strict=True))
    return moved, answers


def compare(before: torch.Tensor, after: torch.Tensor, row: str, where: str = "a process that has seen nothing") -> None:
    """Raise a BenchmarkError where two answers (k, classes) to the same questions differ by more than rounding. `where` says
    of which process the second ones are.
    """
    differing = _differing(before, after)
    if differing.any():
        gap = float((before.double() - after.double()).abs().max())
        raise BenchmarkError(
            f"{row}: {int(differing.sum())} of {len(before)} images that it was asked about get another answer in {where}, "
            f"{gap:.3g} apart in a logit; a model of the closed division answers by the image alone: "
            "let it keep nothing from one call to the next, and let nothing depend on the batch"
        )


def _differing(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Return (k,) bool: answers that differ by more than rounding, whatever offset and scale their logits share. More than a
    few other classes count too.
    """
    if before.shape != after.shape:
        return torch.ones(len(before), dtype=torch.bool)
    gap = (before.double() - after.double()).abs().amax(1)
    spread = (before.double().amax(1) - before.double().amin(1)) / 2
    if len(spread):
        spread = spread.clamp(min=float(spread.nan_to_num(0, 0, 0).quantile(FLAT)))
    # never more than the largest logit allows, so that a flat answer among others cannot hide either
    allowed = ROUNDING.get(before.dtype, 0.0) * spread.minimum(1 + before.double().abs().amax(1))
    alike = (gap <= allowed) & allowed.isfinite()
    apart = ~(alike | (before.double() == after.double()).all(1))
    turned = before.argmax(1) != after.argmax(1)
    return apart | turned if turned.sum() > max(2, FEW * len(before)) else apart


def beside(slopes: Sequence[Slope]) -> torch.Tensor:
    """Return a point (k, c, h, w) beside the image of each gradient: a small step along it, inside the box. The step is long
    enough for the logits to show it.
    """
    images, _, _, gradients = (torch.stack(parts) for parts in zip(*slopes, strict=True))
    along = gradients.double().nan_to_num(0, 0, 0)
    length = along.flatten(1).norm(dim=1).clamp(min=LEAST)
    step = (6 * _rounding(slopes) / length).clamp(ALONG, FURTHEST) / length
    return (images + step.view(-1, *[1] * (images.ndim - 1)) * along).clamp(0, 1).to(images.dtype)


def false_slopes(slopes: Sequence[Slope], after: torch.Tensor) -> Compared:
    """Return how many of these gradients are not those of the answers, how many could be compared, and how many there are.

    No answer shows a false gradient. So the logits `after` (k, classes) of the points `beside` should differ from those of
    the images as the gradients say. A gradient far smaller than others counts as false: an attack follows its direction all
    the same.
    """
    if not slopes:
        return 0, 0, 0
    images, before, above, gradients = (torch.stack(parts).double() for parts in zip(*slopes, strict=True))
    along, weight = gradients.nan_to_num(0, 0, 0), above.abs().sum(1)
    change = ((after.double() - before) * above).sum(1)
    due = ((beside(slopes).double() - images) * along).flatten(1).sum(1)
    rounding, asked = _rounding(slopes), weight > LEAST
    if not asked.any():
        return 0, 0, 0
    size = along.flatten(1).norm(dim=1) / weight.clamp(min=LEAST)
    tiny = asked & (size < TINY * size[asked].quantile(0.9))
    clear = asked & (due > 4 * rounding)
    false = tiny | (clear & ~((change - due).abs() <= MISSED * due + rounding))
    return int(false.sum()), int((tiny | clear).sum()), int(asked.sum())


def _rounding(slopes: Sequence[Slope]) -> torch.Tensor:
    """Return by how much rounding may move what each gradient is of."""
    _, answers, above, _ = zip(*slopes, strict=True)
    of_logit = ROUNDINGS * torch.finfo(answers[0].dtype).eps * torch.stack(answers).double().abs().amax(1)
    return of_logit * torch.stack(above).double().abs().sum(1)


def _among(questions: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """Return (k,) bool: the questions (k, c, h, w) that are among the images."""
    clean = {image.numpy().tobytes() for image in images.cpu() + 0.0}  # so that -0 is 0
    return torch.tensor([question.numpy().tobytes() in clean for question in questions + 0.0], dtype=torch.bool)


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
    """Compare the radii (n,) and classes (n,) of images (n, c, h, w) with votes under new noise. Raise a BenchmarkError where
    too few votes are for the certified classes.

    Args:
        spares: the same model in fresh processes, entered one after another.
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
    """Raise a BenchmarkError where hits (n,) of so many copies are too few for `promised` (n,), the least probabilities."""
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
