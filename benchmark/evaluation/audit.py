"""Runs all parts of the audit on one model and counts what was tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from benchmark.attacks import autoattack, pgd
from benchmark.evaluation.audit_layers import Effort, Tally, audit_layers, float64_copy
from benchmark.evaluation.audit_planted import Certify, audit_planted, audit_ties, has_head, lower_margins, plants
from benchmark.results.certificate import AuditResult
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import ThreatModel
from benchmark.verdicts.ball import into_ball
from benchmark.verdicts.prediction import margins, predict

Report = Callable[[str], None]
CHUNK = 8  # images whose layers are audited at a time
RIVALS = 9  # the nearest rivals whose margins are descended, as many as AutoAttack has targets


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


class Balls:
    """A row's model and certified images, with the attacks on the images' certified balls."""

    def __init__(
        self,
        model: nn.Module,
        images: torch.Tensor,
        labels: torch.Tensor,
        radii: torch.Tensor,
        row: str,
        first: int = 0,
    ) -> None:
        """`first` is the number of the first of these images in the data set, by which a failure names them."""
        self.model, self.images, self.labels, self.radii = model, images, labels, radii
        self.row, self.first = row, first
        self.network = float64_copy(model)
        self.certified = (radii > 0).nonzero()[:, 0]

    def disagreements(self, batch_size: int) -> torch.Tensor:
        """Which images (n,) have different float32 and float64 verdicts; float64 runs image by image, float32 in batches.

        Raises:
            BenchmarkError: one of them is certified, or a certified image is wrong or tied in float64.
        """
        single = predict(self.model, self.images, self.labels, batch_size).margin.double()
        with torch.no_grad():
            logits = torch.cat([self.network(image[None].double()) for image in self.images])
        double = margins(logits, self.labels)
        differ = (single > 0) != (double > 0)
        bad = (self.radii > 0) & (differ | ~(double > 0))
        if bad.any():
            image = int(bad.nonzero()[0])
            raise BenchmarkError(
                f"{self.row}: image {self.first + image} is certified at l2 {float(self.radii[image]):.6g} but its clean "
                f"margin is {float(single[image]):.6g} in float32 and {float(double[image]):.6g} in float64; "
                "the certificate is wrong and nothing is published"
            )
        return differ

    def refute(self, image: int, adversarial: torch.Tensor, attack: str) -> None:
        """Evaluates the images (k, c, h, w), in any precision, that an attack found in the ball of one image.

        Raises:
            BenchmarkError: one is an adversarial example, for the float32 network or its float64 copy.
        """
        threat = ThreatModel(norm="L2", eps=float(self.radii[image]))
        start, label = self.images[image].expand_as(adversarial), self.labels[image].expand(len(adversarial))
        inside = into_ball(adversarial, start, threat, attack)
        single = predict(self.model, inside, label, len(adversarial)).margin.double()
        with torch.no_grad():
            double = margins(self.network(inside.double()), label)
        if not ((single > 0) & (double > 0)).all():
            raise BenchmarkError(
                f"{self.row}: image {self.first + image} is certified at l2 {threat.eps:.6g} but {attack} broke it there "
                f"(margin {float(single.min()):.6g} in float32, {float(double.min()):.6g} in float64); "
                "the certificate is wrong and nothing is published"
            )

    def pgd(self, image: int, restarts: int, seed: int, steps: int) -> None:
        """`restarts` runs of PGD on the cross-entropy; raises as `refute`."""
        threat = ThreatModel(norm="L2", eps=float(self.radii[image]))
        start, label = self.images[image].repeat(restarts, 1, 1, 1), self.labels[image].repeat(restarts)
        found = pgd.attack(self.model, start, label, threat, seed=seed, steps=steps, step_size=threat.eps / 5)
        self.refute(image, found, "pgd at the certified radius")

    def apgd(self, image: int, restarts: int, seed: int, components: tuple[str, ...]) -> None:
        """`restarts` runs of each APGD of AutoAttack (100 steps); raises as `refute`."""
        threat = ThreatModel(norm="L2", eps=float(self.radii[image]))
        start, label = self.images[image].repeat(restarts, 1, 1, 1), self.labels[image].repeat(restarts)
        for component in components:
            found = autoattack.attack(self.model, start, label, threat, seed=seed, component=component)
            self.refute(image, found, f"{component} at the certified radius")

    def descend(self, images: torch.Tensor, seed: int, steps: int) -> None:
        """Descends the float64 margin over each of the nearest rivals of each of `images` (k,); raises as `refute`."""
        x, labels = self.images[images].double(), self.labels[images]
        with torch.no_grad():
            others = self.network(x).scatter(1, labels[:, None], -torch.inf)
        count = min(RIVALS, others.shape[1] - 1)
        rivals = others.topk(count, dim=1).indices.flatten()
        every = images.repeat_interleave(count)
        _, found = lower_margins(
            self.network,
            self.images[every].double(),
            self.labels[every],
            rivals,
            self.radii[every],
            steps=steps,
            seed=seed,
        )
        for image, tried in zip(images.tolist(), found.split(count), strict=True):
            self.refute(image, tried, "margin descent at the certified radius")


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
