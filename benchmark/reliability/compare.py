"""Failure indicators from a row's suites, whose attacks are compared with each other; nothing is run. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmark.reliability.allowance import allowance
from benchmark.results.reliability import FailureIndicator
from benchmark.specs.threat import AttackSpec, ThreatModel

GAP = 0.10  # Croce and Hein 2020 lowered published evaluations by more than this for 13 of 50 defences
WHITE_BOX = "apgd-ce"


@dataclass(frozen=True)
class Ran:
    """One attack of the suites: `broke` (n,) bool, robust images after each component, and what libraries logged."""

    spec: AttackSpec
    broke: np.ndarray
    remaining: dict[str, int]
    warnings: tuple[str, ...]


def failure_indicators(ran: list[Ran], correct: np.ndarray, objections: tuple[str, ...] = ()) -> list[FailureIndicator]:
    """The indicators that the suites' attacks allow; an attack that did not run is compared with nothing.

    Args:
        correct: (n,) bool, correct when clean.
        objections: what AutoAttack's checks said of the model before any attack.
    """
    autoattack = [r for r in ran if r.spec.attack == "autoattack"]
    pgd = [r for r in ran if r.spec.attack == "pgd"]
    fgsm = [r for r in ran if r.spec.attack == "fgsm"]
    indicators: list[FailureIndicator] = []
    if autoattack:
        indicators += [_flags(autoattack, objections), _black_box(autoattack, len(correct))]
    if weaker := _pairs([r for r in ran if r.spec.attack != "autoattack"], autoattack):
        indicators.append(_strongest(weaker, len(correct)))
    if pairs := _pairs(fgsm, pgd):
        indicators.append(_single_step(pairs, len(correct)))
    if same := [(p, a) for p in pgd for a in autoattack if p.spec.threat == a.spec.threat and WHITE_BOX in a.remaining]:
        indicators.append(_gap(same, correct))
    return indicators


def probes_find_nothing_new(ran: list[Ran], probed: np.ndarray, threat: ThreatModel) -> FailureIndicator | None:
    """Fails when a probe broke an image within `threat` that every attack of the suites in that ball left. The image counts
    as lost; the doubt is that the stronger attacks missed it. There is no allowance, because each such image is proof.

    Args:
        probed: (n,) bool, correct when clean and broken by a probe within `threat`.
    """
    inside = [r.broke for r in ran if r.spec.norm == threat.norm and r.spec.eps <= threat.eps]
    if not inside:
        return None
    new = int(np.count_nonzero(probed & ~np.logical_or.reduce(inside)))
    return FailureIndicator(
        name="probes find nothing new",
        measured=f"images that probes within {threat.label} broke and every attack of the track left there: {new}",
        sound=not new,
        explanation="These images count as lost, but the row's attacks should have found them: there may be more.",
    )


def _pairs(weaker: list[Ran], stronger: list[Ran]) -> list[tuple[Ran, Ran]]:
    """A weaker attack and a stronger one whose ball holds the weaker one's."""
    return [(w, s) for w in weaker for s in stronger if w.spec.norm == s.spec.norm and w.spec.eps <= s.spec.eps]


def _flags(autoattack: list[Ran], objections: tuple[str, ...]) -> FailureIndicator:
    """Unsound when AutoAttack warned at all."""
    said = [*objections, *(f"{r.spec.threat.label}: {w}" for r in autoattack for w in r.warnings)]
    return FailureIndicator(
        name="AutoAttack's own flags",
        measured="; ".join(said) or f"none in {len(autoattack)} runs",
        sound=not said,
        explanation="AutoAttack's authors warn that its result may be too high for such a model; it needs an attack made "
        "for it.",
    )


def _black_box(autoattack: list[Ran], n: int) -> FailureIndicator:
    """Unsound when Square, which sees no gradient, breaks more images than the allowance that the parts before it left."""
    gains = {
        r.spec.threat.label: min(c for name, c in r.remaining.items() if name != "square") - r.remaining["square"]
        for r in autoattack
        if "square" in r.remaining and len(r.remaining) > 1
    }
    return FailureIndicator(
        name="white-box beats black-box",
        measured="images that Square broke after AutoAttack's white-box parts: "
        + (_by_threat(gains) or "not measured"),
        sound=all(gain <= allowance(n) for gain in gains.values()),
        explanation="Blind search finds what gradients do not lead to: gradients are masked, and more search would lower the "
        "accuracy further.",
    )


def _strongest(pairs: list[tuple[Ran, Ran]], n: int) -> FailureIndicator:
    """Unsound when AutoAttack leaves more images than the allowance that another attack breaks in its ball."""
    missed = {f"{w.spec.id} in {s.spec.threat.label}": _broke_alone(w, s) for w, s in pairs}
    return FailureIndicator(
        name="AutoAttack beats the other attacks",
        measured="images broken that AutoAttack left: " + _by_threat(missed),
        sound=all(count <= allowance(n) for count in missed.values()),
        explanation="The strongest attack fails where a simple one succeeds, so it may fail on more. The images count "
        "as lost, but others like them may be missing.",
    )


def _single_step(pairs: list[tuple[Ran, Ran]], n: int) -> FailureIndicator:
    """Unsound when one step breaks more images than the allowance that many steps left in the same ball or a larger one."""
    missed = {f"{w.spec.id} against {s.spec.id}": _broke_alone(w, s) for w, s in pairs}
    return FailureIndicator(
        name="many steps beat one",
        measured="images that FGSM broke and PGD left: " + _by_threat(missed),
        sound=all(count <= allowance(n) for count in missed.values()),
        explanation="More steps should find what one step finds. Where they do not, the gradient away from the image is "
        "of no use to the attack.",
    )


def _gap(pairs: list[tuple[Ran, Ran]], correct: np.ndarray) -> FailureIndicator:
    """Unsound when APGD, which adapts its step, leaves fewer images than PGD on the same loss, by more than `GAP` of n.

    Two starts of one PGD differ by up to 5 images in 100 on sound networks, so a smaller gap says nothing.
    """
    left = {
        p.spec.threat.label: (
            int(np.count_nonzero(correct & ~p.broke)),
            a.remaining[WHITE_BOX],
            min(a.remaining.values()),
        )
        for p, a in pairs
    }
    words = [f"{threat}: {plain}, {adaptive}, {every}" for threat, (plain, adaptive, every) in left.items()]
    return FailureIndicator(
        name="PGD agrees with APGD",
        measured="images left standing by PGD, by APGD-CE and by all of AutoAttack: " + "; ".join(words),
        sound=all(plain - adaptive <= max(1.0, GAP * len(correct)) for plain, adaptive, _ in left.values()),
        explanation="On the same loss, plain steps fail where adapted ones succeed: the loss surface is rough or badly "
        "scaled. Numbers from PGD alone are far too high for this model.",
    )


def _broke_alone(weaker: Ran, stronger: Ran) -> int:
    return int(np.count_nonzero(weaker.broke & ~stronger.broke))


def _by_threat(counts: dict[str, int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in counts.items())
