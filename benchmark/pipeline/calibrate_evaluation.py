"""A few calls of each attack, certificate and pass on a row's network, timed on random images; each stage's seconds follow.

The network is the one that stages ask: behind the wall, or rebuilt where it is certified. Its weights are those that are
trained, else untrained ones: an image costs the same, but a certificate may find other radii in another time.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch

from benchmark.attacks import pgd
from benchmark.audit import auditor
from benchmark.certificates.smoothing import smooth
from benchmark.data.corruptions import corrupt
from benchmark.evaluation.certified_radii import certificate_module, certified_radii
from benchmark.evaluation.vote_checks import KEPT
from benchmark.loading import methods
from benchmark.loading.judged import JudgedModel
from benchmark.loading.rows import Row
from benchmark.pipeline.attack_calls import calls
from benchmark.pipeline.progress import duration
from benchmark.pipeline.stopwatch import Clock, Enough, Timed
from benchmark.reliability.asking import ALONE, SIZES
from benchmark.reliability.probes import DRAWS, RADII, RADIUS_STEPS, STEPS
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import AttackSpec, ThreatModel
from benchmark.stages.smooth import SPARES
from benchmark.verdicts.prediction import MIN_ROWS, logits, predict
from benchmark.verdicts.replaced_attention import predictions_with

TINY = 1e-5  # a radius in which an attack breaks nothing, and works all the same
DIVISION = 12  # passes over the first batch that say of which division a model is
SAMPLED = 2  # images of the audit's sample that are tried
PROBED = (
    1 + sum(STEPS) + RADIUS_STEPS * (1 + RADII) + 2 + 2 * RADIUS_STEPS + 2
)  # passes with a gradient, of reliability
ASKED = 2 + DRAWS + 1 + 1 + len(STEPS) + RADII + 6 + 5  # its passes without


@dataclass(frozen=True)
class Seconds:
    """Of a stage: as its work is scheduled, and at most, with what would make it so; and what is not counted, in words."""

    usual: float
    most: float
    note: str = ""
    missing: str = ""


@dataclass(frozen=True)
class Pace:
    """A row's network with the clock beside it.

    Attributes:
        start: seconds until it answers, after the stage's own start.
        images: (b, c, h, w) random ones, a batch of the evaluation's; `labels` (b,) what the network says of them.
    """

    row: Row
    judged: JudgedModel
    clock: Clock
    start: float
    engine: str
    images: torch.Tensor
    labels: torch.Tensor

    @classmethod
    def of(cls, row: Row, judged: JudgedModel, clock: Clock, start: float, engine: str, device: torch.device) -> Pace:
        rules = row.track.evaluation
        count = min(rules.batch_size, rules.images)
        drawn = torch.rand((count, *row.track.data.shape), generator=torch.Generator().manual_seed(0)).to(device)
        return cls(row, judged, clock, start, engine, drawn, logits(judged.model, drawn, count).argmax(1))

    @cached_property
    def forward(self) -> float:
        """Seconds of a pass over a batch."""
        return self.clock.median(lambda: predict(self.judged.model, self.images, self.labels, len(self.images)))

    @cached_property
    def gradient(self) -> float:
        """Seconds of a step of PGD on a batch."""
        return self.call(AttackSpec(attack="pgd", norm="L2", eps=TINY, parameters={"steps": 60, "step_size": TINY}), "")

    @cached_property
    def few(self) -> float:
        """Seconds of a step of PGD on as few images as any call has."""
        return replace(self, images=self.images[:MIN_ROWS], labels=self.labels[:MIN_ROWS]).gradient

    @property
    def batches(self) -> int:
        """Of the attacked images."""
        rules = self.row.track.evaluation
        return -(-(rules.attacked or rules.images) // len(self.images))

    def whole(self, images: int) -> float:
        """Seconds of a pass over so many images."""
        return self.forward * images / len(self.images)

    def call(self, spec: AttackSpec, component: str) -> float:
        """Seconds between two calls of an attack, or of one of its components."""
        timed = Timed(self.judged.model, self.clock)
        module: Any = pgd if not component else importlib.import_module(f"benchmark.attacks.{spec.attack}")
        options: dict[str, Any] = {"component": component} if hasattr(module, "components") else {}
        options |= {"engine": self.engine} if hasattr(module, "engines") else {}
        options |= {"slots": len(self.images)} if hasattr(module, "per_image") else {}
        threat = ThreatModel(norm=spec.norm, eps=TINY)
        with suppress(Enough):
            module.attack(timed, self.images, self.labels, threat, seed=spec.seed, **spec.parameters, **options)
        return timed.seconds() or self.gradient  # of one step there is no pace

    def begin(self) -> float:
        """What every evaluation does first: the network starts, answers when clean, and is confirmed where it was rebuilt."""
        passes = 3 if self.judged.rebuilt else 1
        return self.start + passes * self.whole(self.row.track.evaluation.images)


def attack_seconds(pace: Pace, suite: str) -> Seconds:
    """Every attack of the suite on all attacked images; each pair of component and norm is timed once."""
    row, size, known = pace.row, len(pace.images), dict[tuple[str, ...], float]()
    usual = most = pace.begin() + DIVISION * pace.forward
    notes, missing = [], []
    for spec in row.suites[suite]:
        if methods.own_attack(spec.attack, row.submission.name) and suite not in row.track.suites:
            missing.append(f"{spec.id}, an attack of its own")
            continue
        module = importlib.import_module(f"benchmark.attacks.{spec.attack}")
        for component in getattr(module, "components", (spec.attack,)):
            asked = calls(spec, component, row.track.data.classes, size)
            if asked is None:
                missing.append(spec.id)
                continue
            key = (spec.attack, component, spec.norm, str(spec.parameters))
            known.setdefault(key, pace.call(spec, component) if key not in known else 0.0)
            usual += pace.batches * (asked.usual * known[key] + pace.forward)
            most += pace.batches * (asked.most * known[key] + pace.forward)
            notes.append(asked.note)
        usual, most = (each + 2 * pace.batches * pace.forward for each in (usual, most))
    return Seconds(usual, most, ", ".join(dict.fromkeys(filter(None, notes))), ", ".join(missing))


def reliability_seconds(pace: Pace, _: str) -> Seconds:
    alone = min(ALONE, pace.row.track.evaluation.attacked or pace.row.track.evaluation.images)
    batch, most = PROBED * pace.gradient + ASKED * pace.forward, len(pace.images)
    sizes = min(SIZES, max(0, most - MIN_ROWS - 1)) * (most + MIN_ROWS) / (2 * most)  # in full batches
    found = pace.begin() + pace.batches * batch + sizes * (pace.forward + pace.gradient) + alone * pace.few
    return Seconds(found, found)


def certify_seconds(pace: Pace, _: str) -> Seconds:
    """Radii and the audit on one image and on three: what a batch costs once, and each image beside it."""
    spec, model, rules = pace.row.settings.certificate, pace.judged.model, pace.row.track.evaluation
    assert spec is not None  # the stage applies
    module, size = certificate_module(spec.name), len(pace.images)

    def radii(count: int) -> torch.Tensor:
        return certified_radii(model, pace.images[:count], pace.labels[:count], spec, size)

    def attacked(found: torch.Tensor, count: int) -> None:
        held = torch.where(found > 0, found, TINY * TINY)  # an untrained network may be certified nowhere
        auditor.attack_balls(
            model, pace.images[:count], pace.labels[:count], held[:count], pace.row.name, batch_size=size
        )

    three = radii(3)
    total, blocks = pace.begin(), -(-rules.images // size)
    gap = partial(module.float32_gap, model)
    total += _for(pace.clock, lambda count: gap(pace.images[:count], pace.labels[:count]), rules.images, 1)
    total += _for(pace.clock, radii, rules.images, blocks)
    missing = ""
    try:
        total += _for(pace.clock, partial(attacked, three), rules.images, blocks)
        plan = replace(auditor.DEFAULT, sample=SAMPLED)
        certify = partial(module.certify, **spec.parameters)
        images, labels = pace.images[:3], pace.labels[:3]
        least = three.clamp(min=TINY * TINY)
        once = pace.clock.seconds(
            lambda: auditor.summary(model, images, labels, least, certify, pace.row.name, 0, plan=plan)
        )
        total += once * (auditor.DEFAULT.sample or rules.images) / SAMPLED
    except BenchmarkError:
        missing = "its audit, which refuses untrained weights"
    return Seconds(total, total, missing=missing)


def _for(clock: Clock, run: Callable[[int], object], images: int, batches: int) -> float:
    """Seconds of all images, from one and from three of them."""
    one, three = (min(clock.seconds(lambda n=n: run(n)) for _ in range(2)) for n in (1, 3))  # type: ignore[misc]
    each = max(0.0, three - one) / 2
    return batches * max(0.0, one - each) + images * each


def smooth_seconds(pace: Pace, _: str) -> Seconds:
    """One image's samples, times all images; and the votes of other processes where the network was not rebuilt."""
    rules, images, size = pace.row.track.smoothing, pace.row.track.evaluation.images, len(pace.images)
    assert rules is not None  # the stage applies
    few = rules.model_dump() | {"n": min(rules.n, size), "looks": 1}
    taken = pace.clock.median(
        lambda: smooth(pace.judged.model, pace.images[:1], [0], [], **few, batch_size=size), least=2
    )
    drawn = rules.n0 + few["n"]
    most = images * (rules.n0 + rules.n) * taken / drawn
    least = images * (rules.n0 + -(-rules.n // 2 ** (rules.looks - 1))) * taken / drawn
    checks = 0.0
    if not pace.judged.rebuilt:
        checks = (SPARES - 1) * (pace.start + pace.whole(images)) + KEPT * pace.whole(images)
    words = f"{duration(least + checks + pace.begin())} if every image is settled at the first look"
    return Seconds(pace.begin() + checks + most, pace.begin() + checks + most, words)


def corrupt_seconds(pace: Pace, _: str) -> Seconds:
    """Each corruption drawn once at the middle severity."""
    rules, images = pace.row.track.corruptions, pace.row.track.evaluation.images
    assert rules is not None  # the stage applies
    pixels, middle = pace.images[:2].cpu().numpy(), sorted(rules.severities)[len(rules.severities) // 2]
    drawn = [
        min(
            pace.clock.seconds(partial(corrupt, pixels, range(len(pixels)), name, middle, rules.seed)) for _ in range(2)
        )
        for name in rules.names
    ]
    every = images * len(rules.severities) * sum(drawn) / len(pixels)
    found = pace.begin() + every + len(rules.cells) * pace.whole(images)
    return Seconds(found, found)


def pictures_seconds(pace: Pace, _: str) -> Seconds:
    rules = pace.row.track.pictures
    assert rules is not None  # the stage applies
    shown = max(pace.few, pace.gradient * rules.images / len(pace.images))
    found = pace.begin() + (1 + len(rules.radii)) * rules.steps * shown
    return Seconds(found, found)


def attention_seconds(pace: Pace, _: str) -> Seconds:
    """With attention replaced twice over."""
    once = pace.clock.seconds(lambda: predictions_with("uniform", pace.judged.model, pace.images, len(pace.images)))
    found = pace.begin() + 2 * once * pace.row.track.evaluation.images / len(pace.images)
    return Seconds(found, found)


MEASURED: dict[str, Callable[[Pace, str], Seconds]] = {
    "attack": attack_seconds,
    "reliability": reliability_seconds,
    "certify": certify_seconds,
    "smooth": smooth_seconds,
    "corrupt": corrupt_seconds,
    "pictures": pictures_seconds,
    "attention": attention_seconds,
}  # by the name of the stage: from the pace and what follows that name
