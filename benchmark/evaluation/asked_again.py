"""Check that a model run as its author wrote it is a function: an answer may depend on the question alone.

A model that remembers the clean images could answer an attack's images near them by heart. So some of its questions, chosen
afterwards, are asked again in a fresh process, in other company and another order (`check_answers`). Images that withstood
every attack are attacked again in a process that never sees them clean (`attacked_afresh`). A network rebuilt from this
benchmark's layers is a function and needs neither.

Clopper and Pearson's bound on a smoothed model needs independent votes. A model could know the track's seed, and so the noise
to come. So fresh processes are asked about new copies, with noise from the operating system's randomness (`check_radii`).

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

# by which rounding may change an answer, relative to 1 + the largest logit
ROUNDING = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
FEW = 0.01  # share of the answers, at least two, that may get another class by rounding
CHANCE = 1e-6  # probability, over the new noise, of refusing sound votes
COMPANY = 32  # images in a call that asks again
STEPS, STEP = 20, 0.1  # of the new attack, and its step in radii
# Of the check of a gradient, in this order: length of the step along it; share of the promised change that the answers may
# miss, since networks have kinks; rounding of a logit, in units of its last place; share of a large gradient's length below
# which a gradient counts as false; share of a gradient that has to lie inside the box; smallest number not taken for 0.
ALONG, MISSED, ROUNDINGS, TINY, OF_WHOLE, LEAST = 1e-3, 0.5, 16, 1e-3, 0.3, 1e-20


def check_answers(
    again: nn.Module, calls: Sequence[Call], images: torch.Tensor, *, count: int, row: str, is_open: bool
) -> torch.Tensor:
    """Ask again about all images of the first of the calls of a model, which decides, and about `count` of the others.

    Args:
        calls: the one that decides, then the others.
        again: the same model in a process that has been asked nothing, or nothing about clean images.
        images: (n, c, h, w), the clean evaluation images.

    Returns:
        (n,) bool: images near which a model of the open division gives another answer. As it draws noise, the same calls are
        made again with the same noise.

    Raises:
        BenchmarkError: an answer of a model of the closed division differs by more than rounding.
    """
    lost = torch.zeros(len(images), dtype=torch.bool, device=images.device)
    if not is_open:
        if len({call[1].shape[1] for call in calls}) > 1:
            raise BenchmarkError(
                f"{row}: its logits have another number of classes from call to call; give each image all"
            )
        questions, before = (torch.cat(parts) for parts in zip(*[call[:2] for call in calls], strict=True))
        generator = torch.Generator().manual_seed(secrets.randbits(63))  # unknown to the model
        last = len(calls[0][0])
        others = last + torch.randperm(len(questions) - last, generator=generator)[:count]
        chosen = torch.cat([torch.arange(last), others])
        chosen = chosen[torch.randperm(len(chosen), generator=generator)]
        is_clean = _among(questions[chosen], images)
        # clean images last: a model that waits for one would then lie about the others again
        parts = [chosen[~is_clean], chosen[is_clean]]
        answers = [logits(again, questions[part].to(images.device), COMPANY).cpu() for part in parts if len(part)]
        compare(before[torch.cat(parts)], torch.cat(answers), row)
        return lost
    assert isinstance(again, SandboxedModel)
    # calls about clean images last, for the same reason
    for questions, before, seed in sorted(calls, key=lambda call: int(_among(call[0], images).sum())):
        after = again.ask_logits(questions.to(images.device), seed=seed)[0].cpu()
        for question in questions[_differing(before, after)]:
            lost[(images.cpu() - question).flatten(1).norm(dim=1).argmin()] = True
    return lost


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


def compare(
    before: torch.Tensor, after: torch.Tensor, row: str, where: str = "a process that has seen nothing"
) -> None:
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
    """Return (k,) bool: answers that differ by more than rounding. More than a few other classes count too, since an offset
    common to all logits makes rounding large enough to hide in.
    """
    if before.shape != after.shape:
        return torch.ones(len(before), dtype=torch.bool)
    gap = (before.double() - after.double()).abs().amax(1)
    allowed = ROUNDING.get(before.dtype, 0.0) * (1 + before.double().abs().amax(1))
    alike = (gap <= allowed) & allowed.isfinite()
    apart = ~(alike | (before.double() == after.double()).all(1))
    turned = before.argmax(1) != after.argmax(1)
    return apart | turned if turned.sum() > max(2, FEW * len(before)) else apart


def false_slopes(again: nn.Module, slopes: Sequence[Slope], device: torch.device) -> tuple[int, int]:
    """Return how many of these gradients are not those of the answers, and how many could be checked.

    No answer shows a false gradient. So `again` is asked on both sides of each image, a small step along the gradient and
    inside the box, and its logits should change as the gradient says. A gradient far smaller than others counts as false: an
    attack follows its direction all the same.
    """
    if not slopes:
        return 0, 0
    images, above, gradients = (torch.stack(parts) for parts in zip(*slopes, strict=True))
    whole = gradients.double().nan_to_num(0, 0, 0)
    along = whole * ((images > ALONG) & (images < 1 - ALONG))
    length, of_whole = (tensor.flatten(1).norm(dim=1) for tensor in (along, whole))
    steps = along / length.clamp(min=LEAST).view(-1, *[1] * (images.ndim - 1))
    sides = torch.cat([images + ALONG * steps, images - ALONG * steps]).float()
    after, before = logits(again, sides.to(device), 4 * COMPANY).double().cpu().chunk(2)
    weight, change, due = above.double().abs().sum(1), ((after - before) * above.double()).sum(1), 2 * ALONG * length
    rounding = ROUNDINGS * torch.finfo(above.dtype).eps * (1 + after.abs().amax(1)) * weight
    asked = weight > LEAST
    if not asked.any():
        return 0, 0
    size = of_whole / weight.clamp(min=LEAST)
    tiny = asked & (size < TINY * size[asked].quantile(0.9))
    clear = asked & (length > OF_WHOLE * of_whole) & (due > 4 * rounding)
    false = tiny | (clear & ((change - due).abs() > MISSED * due + rounding))
    return int(false.sum()), int((tiny | clear).sum())


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
