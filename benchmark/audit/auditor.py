"""Runs all parts of the audit on one model and counts what was tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from benchmark.audit.balls import Balls
from benchmark.audit.layers import Effort, Tally, audit_layers
from benchmark.audit.planted import Certify, audit_planted, audit_ties, has_head, plants
from benchmark.results.certificate import AuditResult

Report = Callable[[str], None]
CHUNK = 8  # images whose layers are audited at a time


@dataclass(frozen=True)
class Plan:
    """How much to try. PGD attacks every certified image; the costlier parts take `sample` of them."""

    sample: int | None = 8  # None: all
    restarts: int = 4
    steps: int = 15  # of PGD and of descending margins
    components: tuple[str, ...] = ("apgd-ce",)  # AutoAttack's, 100 steps each
    effort: Effort = field(default_factory=Effort)
    planted: int = 1  # counterexamples an image
    seed: int = 0


DEFAULT = Plan()


def deep(restarts: int, seed: int) -> Plan:
    """What `rvb audit` does: every part on all images certified."""
    effort = Effort(radii=(0.001, 0.01, 0.1, 1.0, 10.0), starts=8, steps=30)
    return Plan(None, restarts, 50, ("apgd-ce", "apgd-t"), effort, 3, seed)


def audit(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    radii: torch.Tensor,
    certify: Certify,
    row: str,
    *,
    batch_size: int,
    plan: Plan = DEFAULT,
    report: Report = lambda _: None,
) -> AuditResult:
    """Tries to break the certified l2 `radii` (n,) of `images` (n, c, h, w) and the certificate that gave them.

    Args:
        certify: (model, images, labels) to radii, as the row's certificate with its parameters.
        report: is told what is running.

    Raises:
        BenchmarkError: the first failure, with what failed, the image, the radius and the margins.
    """
    balls = Balls(model, images, labels, radii, row)
    differ = attack_balls(balls, batch_size, plan=plan, report=report)
    return summary(balls, certify, int(differ.sum()), plan=plan, report=report)


def attack_balls(
    balls: Balls, batch_size: int, *, plan: Plan = DEFAULT, report: Report = lambda _: None
) -> torch.Tensor:
    """The part of `audit` that attacks every certified image. It may be done batch by batch.

    Returns:
        Whether float32 and float64 verdicts differ, (n,).

    Raises:
        BenchmarkError: the first certified image that an attack broke, or whose verdicts differ.
    """
    report("comparing float32 with float64 verdicts")
    differ = balls.disagreements(batch_size)
    certified = balls.certified
    for number, image in enumerate(certified.tolist()):
        if number % 20 == 0:
            report(f"pgd, {plan.restarts} starts: image {number + 1} of {len(certified)}")
        balls.pgd(image, plan.restarts, plan.seed + balls.first + image, plan.steps)
    if len(certified):
        report(f"descending the margins over the nearest rivals of {len(certified)} images")
        balls.descend(certified, plan.seed + balls.first, plan.steps)
    return differ


def summary(
    balls: Balls, certify: Certify, disagreements: int, *, plan: Plan = DEFAULT, report: Report = lambda _: None
) -> AuditResult:
    """The parts of `audit` that take a sample of all the images, and what was tried in all; raises as `audit`."""
    model, images, labels, certified = balls.model, balls.images, balls.labels, balls.certified
    sample = spread(certified if len(certified) else torch.arange(len(images), device=balls.radii.device), plan.sample)
    with torch.no_grad():
        classes = model(images[:1]).shape[1]
    attacks = _attack_sample(balls, sample, classes, plan, report) if len(certified) else ()
    tally = _audit_layers(balls, sample, plan, report)
    ties, planted, closest = 0, 0, 0.0
    if has_head(model):
        report(f"tying a rival with the label of {len(sample)} images")
        ties = audit_ties(model, images[sample], labels[sample], certify, balls.row)
        report(f"planting counterexamples for {len(sample)} images")
        planted, closest = _audit_planted(balls, sample, certify, classes, plan)
    return AuditResult(
        images=len(certified),
        restarts=plan.restarts,
        attacks=attacks,
        sample=len(sample),
        layers=tally.layers,
        layer_trials=tally.trials,
        worst_ratio=tally.worst,
        float64_disagreements=disagreements,
        ties=ties,
        planted=planted,
        closest_plant=closest,
    )


def spread(index: torch.Tensor, count: int | None) -> torch.Tensor:
    """`count` of the indices, evenly spread; all for None."""
    if count is None or count >= len(index):
        return index
    return index[torch.linspace(0, len(index) - 1, count).long().to(index.device)]


def _attack_sample(balls: Balls, sample: torch.Tensor, classes: int, plan: Plan, report: Report) -> tuple[str, ...]:
    """Attacks the balls of the sample by AutoAttack's APGD; the names of all attacks on balls."""
    components = plan.components if classes >= 4 else ()  # AutoAttack's losses need four
    for number, image in enumerate(sample.tolist()):
        if components and number % 5 == 0:
            report(f"{', '.join(components)}, {plan.restarts} starts: image {number + 1} of {len(sample)}")
        balls.apgd(image, plan.restarts, plan.seed + image, components)
    return ("pgd", "margin descent", *components)


def _audit_layers(balls: Balls, sample: torch.Tensor, plan: Plan, report: Report) -> Tally:
    total, row = Tally(), balls.row
    for number, part in enumerate(sample.split(CHUNK)):
        report(f"ascending against each layer's bounds: image {number * CHUNK + 1} of {len(sample)}")
        part_tally = audit_layers(
            balls.model, balls.images[part], part.tolist(), row, effort=plan.effort, seed=plan.seed + number
        )
        total.layers, total.trials = part_tally.layers, total.trials + part_tally.trials
        total.worst = max(total.worst, part_tally.worst)
    return total


def _audit_planted(balls: Balls, sample: torch.Tensor, certify: Certify, classes: int, plan: Plan) -> tuple[int, float]:
    """Plants counterexamples for the images `sample`; how many, and the largest ratio of radius to distance.

    Rivals take turns, so that a certificate that ignores a class is found out, and so do radii of half, once and twice the
    median.
    """
    which = sample.repeat(plan.planted)
    turn = torch.arange(len(which), device=sample.device)
    x, y, certified = balls.images[which], balls.labels[which], balls.radii[balls.radii > 0]
    rivals = (y + 1 + turn % (classes - 1)) % classes
    usual = float(certified.median()) if len(certified) else 0.1
    sizes = usual * torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64, device=sample.device)
    made = plants(balls.model, x, y, rivals, sizes[(turn + turn // len(sizes)) % len(sizes)], steps=30, seed=plan.seed)
    return len(made), audit_planted(made, x, y, certify, balls.row)
