"""What a model answers may depend on the question alone: not on what it was asked before, or beside it.

A model that remembers the clean images it is shown could answer the attacks' images near them by heart. So some of what it
was asked, chosen afterwards, is asked again in a process that has seen nothing, in other company and another order
(`check_answers`). And images that withstood every attack are attacked once more in a process that is never shown them clean
(`broken_afresh`). A network rebuilt from known layers is a function, and needs neither.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from benchmark.attacks import pgd
from benchmark.runtime.errors import BenchmarkError
from benchmark.sandbox.model import Call, SandboxedModel
from benchmark.specs.threat import ThreatModel
from benchmark.verdicts.ball import into_ball
from benchmark.verdicts.gradients import attackable
from benchmark.verdicts.margins import margins
from benchmark.verdicts.prediction import MIN_ROWS, logits

# how far two answers to one question may be apart by rounding, of one more than the largest logit
ROUNDING = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
FEW = 0.01  # of the answers, and two at least: so many may get another class by rounding
STEPS, STEP = 20, 0.1  # of the attack afresh, and its step in radii


@dataclass(frozen=True)
class Afresh:
    """What an attack in a fresh process broke: indices (k,) of the images, what they became (k, c, h, w), and the logits
    (k, classes) that these got there.
    """

    index: torch.Tensor
    images: torch.Tensor
    answers: torch.Tensor


def check_answers(
    again: nn.Module, calls: Sequence[Call], images: torch.Tensor, *, count: int, row: str, is_open: bool
) -> torch.Tensor:
    """Ask again `count` images of what a model was asked in some calls, fewer where it was asked about fewer.

    Args:
        calls: the last one first; of that one all images are asked about again, up to `count`.
        again: the same model in a process that has been asked nothing, or nothing about clean images.
        images: (n, c, h, w), the clean evaluation images.

    Returns:
        (n,) bool: in the open division, whose models draw noise, the same calls are made again with the same noise, and an
        image is marked where a call about it, or a point nearest to it, is answered otherwise. None is in the closed one.

    Raises:
        BenchmarkError: a model of the closed division answers otherwise by more than rounding.
    """
    lost = torch.zeros(len(images), dtype=torch.bool, device=images.device)
    if not is_open:
        if len({call[1].shape[1] for call in calls}) > 1:
            raise BenchmarkError(
                f"{row}: its logits have another number of classes from call to call; give each image all"
            )
        questions, before = (torch.cat(parts) for parts in zip(*[call[:2] for call in calls], strict=True))
        generator = torch.Generator().manual_seed(secrets.randbits(63))  # which no model knows
        last = torch.arange(min(count, len(calls[0][0])))  # of the last call, which decided
        rest = len(last) + torch.randperm(len(questions) - len(last), generator=generator)
        chosen = torch.cat([last, rest[: count - len(last)]])
        chosen = chosen[torch.randperm(len(chosen), generator=generator)]
        # clean images last: a model that remembers them would answer the others alike after them
        chosen = chosen[torch.argsort(_among(questions[chosen], images), stable=True)]
        compare(before[chosen], logits(again, questions[chosen].to(images.device), MIN_ROWS).cpu(), row)
        return lost
    assert isinstance(again, SandboxedModel)
    # calls about clean images last, for the same reason
    for questions, before, seed in sorted(calls, key=lambda call: int(_among(call[0], images).sum())):
        after = again.ask_logits(questions.to(images.device), seed=seed)[0].cpu()
        for question in questions[_differing(before, after)]:
            lost[(images.cpu() - question).flatten(1).norm(dim=1).argmin()] = True
    return lost


def broken_afresh(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, index: torch.Tensor, threat: ThreatModel, *,
    seed: int, batch_size: int, is_open: bool,
) -> Afresh:  # fmt: skip
    """Attack the images `index` by PGD from random points of the ball; their clean versions are not asked about.

    Args:
        model: in a process that has been asked nothing.
        images: (n, c, h, w); labels: (n,).
        index: (m,), of the images that are still classified correctly.
    """
    parts = []
    with torch.random.fork_rng([images.device] if images.device.type == "cuda" else []):
        for rows in index.split(batch_size) if threat.eps else ():
            x, y = images[rows], labels[rows]
            attacked = attackable(model, torch.rand_like(x), y)[0] if is_open else model
            moved = pgd.attack(attacked, x, y, threat, seed=seed, steps=STEPS, step_size=STEP * threat.eps)
            moved = into_ball(moved, x, threat, "pgd")
            answers = logits(model, moved, batch_size)
            wrong = margins(answers, y) <= 0
            parts.append((rows[wrong], moved[wrong], answers[wrong]))
    if not parts:
        return Afresh(index[:0], images[:0], images[:0].flatten(1))
    return Afresh(*map(torch.cat, zip(*parts, strict=True)))


def compare(before: torch.Tensor, after: torch.Tensor, row: str) -> None:
    """Compare two answers (k, classes) to the same questions.

    Raises:
        BenchmarkError: they differ by more than rounding.
    """
    differing = _differing(before, after)
    if differing.any():
        gap = float((before.double() - after.double()).abs().max())
        raise BenchmarkError(
            f"{row}: {int(differing.sum())} of {len(before)} images that it was asked about get another answer in a process "
            f"that has seen nothing, {gap:.3g} apart in a logit; a model of the closed division answers by the image alone: "
            "let it keep nothing from one call to the next, and let nothing depend on the batch"
        )


def _differing(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """(k,) bool: answers that differ by more than rounding; all that get another class where these are more than a few, since
    an offset common to all logits makes rounding large enough to hide in.
    """
    if before.shape != after.shape:
        return torch.ones(len(before), dtype=torch.bool)
    gap = (before.double() - after.double()).abs().amax(1)
    allowed = ROUNDING.get(before.dtype, 0.0) * (1 + before.double().abs().amax(1))
    alike = (gap <= allowed) & allowed.isfinite()  # of no number that is not finite
    apart = ~(alike | (before.double() == after.double()).all(1))
    turned = before.argmax(1) != after.argmax(1)
    return apart | turned if turned.sum() > max(2, FEW * len(before)) else apart


def _among(questions: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    known = {image.numpy().tobytes() for image in images.cpu()}
    return torch.tensor([question.numpy().tobytes() in known for question in questions], dtype=torch.uint8)
