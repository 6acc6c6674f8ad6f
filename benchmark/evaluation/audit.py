"""The audit tries to break a row's certificates. It attacks certified balls and ascends against the bounds of single layers
(audit_layers.py). It also certifies copies of the network whose largest sound radius is known: ties and planted
counterexamples.

In a copy only the head's rows and biases change, so everything before it is the row's own network. A tie has radius 0. A
plant is an image x', found by ascent, whose margin over one rival is lower by f than the clean image's. The rival's bias is
set so that the clean image's margin is slightly below f, and the other rivals' so that they do not matter. Then x' is
misclassified, and a certificate whose radius reaches x' is wrong.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from benchmark.attacks import autoattack, pgd
from benchmark.attacks.ball import distances, into_ball
from benchmark.attacks.prediction import margins, predict
from benchmark.evaluation.audit_layers import Effort, Tally, ascend, audit_layers, float64_copy, shrink
from benchmark.layers.lipschitz import NormalisedHead
from benchmark.records.accuracy import AuditResult
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import ThreatModel

Report = Callable[[str], None]
Certify = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]  # model, images and labels to radii
CHUNK = 8  # images whose layers are audited at a time
DESCENDED = 256  # images in a pass of the network
RIVALS = 9  # nearest rivals whose margins are descended, as many as AutoAttack has targets


@dataclass(frozen=True)
class Plan:
    """The effort of an audit. PGD attacks every certified image; the costlier parts take `sample` of them."""

    sample: int | None = 8  # None: all
    restarts: int = 4
    steps: int = 15  # of PGD and of descending margins
    components: tuple[str, ...] = ("apgd-ce",)  # AutoAttack's, 100 steps each
    effort: Effort = field(default_factory=Effort)
    planted: int = 1  # counterexamples an image
    seed: int = 0


DEFAULT = Plan()


def deep(restarts: int, seed: int) -> Plan:
    """Return the plan of `rvb audit`: every part on all certified images."""
    effort = Effort(radii=(0.001, 0.01, 0.1, 1.0, 10.0), starts=8, steps=30)
    return Plan(None, restarts, 50, ("apgd-ce", "apgd-t"), effort, 3, seed)


@dataclass(eq=False)
class Audit:
    """Try to break the certified l2 `radii` (n,) of `images` (n, c, h, w), and the certificate that gave them.

    Balls are attacked at the certified radius itself, in float32 and float64. The track's attacks use a few fixed radii, at
    which a certificate that is slightly too large would not be noticed.

    Args:
        first: the index of the first image in the data set, for error messages.
        report: is called with what is running.

    Raises:
        BenchmarkError: by each method, at the first failure, with the image, the radius and the margins.
    """

    model: nn.Module
    images: torch.Tensor
    labels: torch.Tensor
    radii: torch.Tensor
    row: str
    first: int = 0
    plan: Plan = DEFAULT
    report: Report = lambda _: None

    def __post_init__(self) -> None:
        self.network = float64_copy(self.model)
        self.certified = (self.radii > 0).nonzero()[:, 0]

    def run(self, certify: Certify, batch_size: int) -> AuditResult:
        """Run every part; see `summary` for `certify`."""
        return self.summary(certify, int(self.attack_balls(batch_size).sum()))

    def attack_balls(self, batch_size: int) -> torch.Tensor:
        """Attack every certified image; return whether float32 and float64 verdicts differ, (n,)."""
        certified, plan = self.certified, self.plan
        self.report("comparing float32 with float64 verdicts")
        differ = self.disagreements(batch_size)
        for number, image in enumerate(certified.tolist()):
            if number % 20 == 0:
                self.report(f"pgd, {plan.restarts} starts: image {number + 1} of {len(certified)}")
            self.pgd(image, plan.restarts, plan.seed + self.first + image, plan.steps)
        if len(certified):
            self.report(f"descending the margins over the nearest rivals of {len(certified)} images")
            self.descend(certified, plan.seed + self.first, plan.steps)
        return differ

    def disagreements(self, batch_size: int) -> torch.Tensor:
        """Return which images (n,) have different verdicts in float32 and, image by image, in float64. None may be certified,
        nor may a certified image be wrong or tied in float64.
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

    def _repeated(self, image: int, count: int) -> tuple[torch.Tensor, torch.Tensor, ThreatModel]:
        """Return copies of an image, its labels, and its certified ball."""
        threat = ThreatModel(norm="L2", eps=float(self.radii[image]))
        return self.images[image].repeat(count, 1, 1, 1), self.labels[image].repeat(count), threat

    def refute(self, image: int, adversarial: torch.Tensor, attack: str) -> None:
        """Raise unless the images (k, c, h, w), in any precision, that an attack found in an image's ball are classified
        correctly by the float32 network and its float64 copy.
        """
        start, label, threat = self._repeated(image, len(adversarial))
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
        """Attack one image by PGD on the cross-entropy, with `restarts` random starts."""
        start, label, threat = self._repeated(image, restarts)
        adversarial = pgd.attack(self.model, start, label, threat, seed=seed, steps=steps, step_size=threat.eps / 5)
        self.refute(image, adversarial, "pgd at the certified radius")

    def apgd(self, image: int, restarts: int, seed: int, components: tuple[str, ...]) -> None:
        """Attack one image by variants of APGD, such as apgd-ce, with AutoAttack's 100 steps and `restarts` random starts."""
        start, label, threat = self._repeated(image, restarts)
        for component in components:
            adversarial = autoattack.attack(self.model, start, label, threat, seed=seed, component=component)
            self.refute(image, adversarial, f"{component} at the certified radius")

    def descend(self, images: torch.Tensor, seed: int, steps: int) -> None:
        """Descend the float64 margin over each of the nearest rivals of each of `images` (k,)."""
        with torch.no_grad():
            others = self.network(self.images[images].double()).scatter(1, self.labels[images, None], -torch.inf)
        count = min(RIVALS, others.shape[1] - 1)
        rivals, every = others.topk(count, dim=1).indices.flatten(), images.repeat_interleave(count)
        x, y, radii = self.images[every].double(), self.labels[every], self.radii[every]
        _, lowest = lower_margins(self.network, x, y, rivals, radii, steps=steps, seed=seed)
        for image, adversarial in zip(images.tolist(), lowest.split(count), strict=True):
            self.refute(image, adversarial, "margin descent at the certified radius")

    def summary(self, certify: Certify, disagreements: int) -> AuditResult:
        """Run the parts that take a sample of the images; return the counts of the whole audit.

        Args:
            certify: (model, images, labels) to radii, as the row's certificate with its parameters.
            disagreements: between float32 and float64 verdicts.
        """
        model, certified, plan = self.model, self.certified, self.plan
        audited = certified if len(certified) else torch.arange(len(self.images), device=self.radii.device)
        sample = spread(audited, plan.sample)
        with torch.no_grad():
            classes = model(self.images[:1]).shape[1]
        components = plan.components if classes >= 4 else ()  # AutoAttack's losses need four
        for number, image in enumerate(sample.tolist() if len(certified) and components else ()):
            if number % 5 == 0:
                self.report(f"{', '.join(components)}, {plan.restarts} starts: image {number + 1} of {len(sample)}")
            self.apgd(image, plan.restarts, plan.seed + image, components)
        tally = self._layers(sample)
        ties, planted, closest = 0, 0, 0.0
        if has_head(model):
            self.report(f"tying a rival with the label of {len(sample)} images")
            ties = audit_ties(model, self.images[sample], self.labels[sample], certify, self.row)
            self.report(f"planting counterexamples for {len(sample)} images")
            planted, closest = self._planted(sample, certify, classes)
        return AuditResult(
            images=len(certified),
            restarts=plan.restarts,
            attacks=("pgd", "margin descent", *components) if len(certified) else (),
            sample=len(sample),
            layers=tally.layers,
            layer_trials=tally.trials,
            worst_ratio=tally.worst,
            float64_disagreements=disagreements,
            ties=ties,
            planted=planted,
            closest_plant=closest,
        )

    def _layers(self, sample: torch.Tensor) -> Tally:
        total, seed = Tally(), self.plan.seed
        for number, part in enumerate(sample.split(CHUNK)):
            self.report(f"ascending against each layer's bounds: image {number * CHUNK + 1} of {len(sample)}")
            images, names = self.images[part], part.tolist()
            tally = audit_layers(self.model, images, names, self.row, effort=self.plan.effort, seed=seed + number)
            total = Tally(tally.layers, total.trials + tally.trials, max(total.worst, tally.worst))
        return total

    def _planted(self, sample: torch.Tensor, certify: Certify, classes: int) -> tuple[int, float]:
        """Plant counterexamples for the images `sample`; return how many, and the largest ratio of radius to distance. Rivals
        take turns, which reveals a certificate that ignores a class; so do radii around the median.
        """
        which = sample.repeat(self.plan.planted)
        turn = torch.arange(len(which), device=sample.device)
        x, y, certified = self.images[which], self.labels[which], self.radii[self.radii > 0]
        rivals = (y + 1 + turn % (classes - 1)) % classes
        usual = float(certified.median()) if len(certified) else 0.1
        sizes = usual * torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64, device=sample.device)
        radii = sizes[(turn + turn // len(sizes)) % len(sizes)]
        made = plants(self.model, x, y, rivals, radii, steps=30, seed=self.plan.seed)
        return len(made), audit_planted(made, x, y, certify, self.row)


def spread(index: torch.Tensor, count: int | None) -> torch.Tensor:
    """Return `count` of the indices, evenly spread; all for None."""
    if count is None or count >= len(index):
        return index
    return index[torch.linspace(0, len(index) - 1, count).long().to(index.device)]


def lower_margins(
    network: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    rivals: torch.Tensor,
    radii: torch.Tensor,
    *,
    steps: int,
    seed: int,
    box: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Search the image within each l2 radius with the lowest margin over its rival; return the drop of the margin (n,) and
    the images, float64.

    Args:
        network: in float64.
        images: (n, c, h, w) float64 in [0, 1]; labels, rivals and radii (n,).
        box: stay in [0, 1]. Otherwise the result refutes only certificates that hold outside [0, 1] too.
    """
    generator = torch.Generator().manual_seed(seed)

    def lower(part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, radius, pair = images[part], radii[part], torch.stack([labels[part], rivals[part]], 1)
        start = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.device)

        def margin(images: torch.Tensor) -> torch.Tensor:
            both = network(images).gather(1, pair)
            return both[:, 0] - both[:, 1]

        def project(move: torch.Tensor) -> torch.Tensor:
            inside = shrink(move, radius)
            return (x + inside).clamp(0, 1) - x if box else inside

        clean = margin(x)
        fall, move = ascend(lambda move: clean - margin(x + move), project, shrink(start, radius / 4), radius, steps)
        return fall, x + move

    parts = [lower(part) for part in torch.arange(len(images), device=images.device).split(DESCENDED)]
    falls, lowest = zip(*parts, strict=True)
    return torch.cat(falls), torch.cat(lowest)


def has_head(model: nn.Module) -> bool:
    """Return whether the last layer is a linear head with a bias, as ties and plants need."""
    head = model[-1] if isinstance(model, nn.Sequential) and len(model) else None
    return isinstance(head, NormalisedHead) or (isinstance(head, nn.Linear) and head.bias is not None)


def _head(model: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the head's rows and biases as stored."""
    head = model[-1]  # type: ignore[index]
    return (head.raw if isinstance(head, NormalisedHead) else head.weight).data, head.bias.data


def tied(model: nn.Module, label: int, rival: int) -> nn.Module:
    """Return a copy whose logit of `rival` is that of `label`, for every image."""
    model = copy.deepcopy(model)
    for part in _head(model):
        part[rival] = part[label]
    return model


def audit_ties(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, certify: Certify, row: str) -> int:
    """Certify images under ties of their label with the classes before and after it; return the number of trials. Raise a
    BenchmarkError where a tied image gets a radius above 0.
    """
    classes, tried = len(_head(model)[1]), 0
    for label in labels.unique().tolist():
        same = labels == label
        for rival in {(label - 1) % classes, (label + 1) % classes}:
            radii = certify(tied(model, label, rival), images[same], labels[same])
            tried += len(radii)
            if not (radii == 0).all():
                raise BenchmarkError(
                    f"{row}: an image whose classes {label} and {rival} tie exactly is certified at l2 "
                    f"{float(radii.max()):.6g}; the certificate is wrong and nothing is published"
                )
    return tried


@dataclass(frozen=True)
class Plant:
    """A network with an adversarial example of known distance for one image."""

    model: nn.Module
    image: int
    rival: int
    distance: float
    margins: tuple[float, float]  # clean and planted, float64


def plants(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    rivals: torch.Tensor,
    radii: torch.Tensor,
    *,
    steps: int,
    seed: int,
) -> list[Plant]:
    """Return a plant for each image, rival and radius (n,) where ascent lowers the margin by more than float32 rounding.

    For both the float32 network and its float64 copy the clean image is correct and the planted one misclassified.
    """
    network = float64_copy(model)
    x = images.double()
    _, lowest = lower_margins(network, x, labels, rivals, radii, steps=steps, seed=seed)
    made = []
    for i in range(len(images)):
        threat = ThreatModel(norm="L2", eps=float(radii[i]))
        moved = into_ball(lowest[i : i + 1], images[i : i + 1], threat, "the auditor's ascent")
        both, pair = torch.cat([images[i : i + 1], moved]), labels[i].expand(2)
        with torch.no_grad():
            logits = network(both.double())
        plant = _plant(model, logits, int(labels[i]), int(rivals[i]))
        single = predict(plant, both, pair, 2).margin.double()
        double = predict(float64_copy(plant), both.double(), pair, 2).margin.double()
        if (single[0] > 0) & (double[0] > 0) & (single[1] < 0) & (double[1] < 0):
            distance = float(distances(moved, images[i : i + 1])["L2"])
            made.append(Plant(plant, i, int(rivals[i]), distance, (float(double[0]), float(double[1]))))
    return made


def _plant(model: nn.Module, logits: torch.Tensor, label: int, rival: int) -> nn.Module:
    """Return a copy with planted biases; `logits` (2, classes) float64 of the clean and the moved image."""
    clean, moved = logits[:, label : label + 1] - logits
    fall = float(clean[rival] - moved[rival])
    sliver = 4e-6 * (1 + float(logits.abs().max()))
    shift = (10 * fall + 1 - clean).clamp(min=0)  # the other rivals, far below
    shift[rival] = fall - sliver - clean[rival]
    shift[label] = 0
    model = copy.deepcopy(model)
    bias = _head(model)[1]
    bias -= shift.to(bias.dtype)
    return model


def audit_planted(made: list[Plant], images: torch.Tensor, labels: torch.Tensor, certify: Certify, row: str) -> float:
    """Certify each planted image; return the largest ratio of a certified radius to the distance of the counterexample. Raise
    a BenchmarkError where a certificate reaches its counterexample.
    """
    closest = 0.0
    for plant in made:
        place = slice(plant.image, plant.image + 1)
        radius = float(certify(plant.model, images[place], labels[place]))
        if not radius < plant.distance:
            raise BenchmarkError(
                f"{row}: planted counterexample {plant.image} (class {plant.rival}) lies at l2 {plant.distance:.6g} "
                f"(margins {plant.margins[0]:.3g} clean, {plant.margins[1]:.3g} there) but {radius:.6g} is certified; "
                "the certificate is wrong and nothing is published"
            )
        closest = max(closest, radius / plant.distance)
    return closest
