"""Whether a row can be believed, in one line, and the warnings about it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmark.records.contributed import Contribution
from benchmark.records.record import Record

TRUST = {
    "rebuilt": "rebuilt here from scratch",
    "re-evaluated": "weights from elsewhere, attacked here",
    "replayed": "stored images and certificates evaluated again",
    "claimed": "the paper's own number, not measured here",
}


@dataclass(frozen=True)
class Verdict:
    """`line` is the verdict in short; each of `warnings` is a warning in a few words and its meaning in a sentence."""

    line: str
    warnings: tuple[tuple[str, str], ...]


def verdict(record: Record, contributions: Sequence[Contribution] = (), trainings: int = 0) -> Verdict:
    """Return the verdict on a row; `trainings` is the number of seeds it was trained with, 0 if it was trained once."""
    replayable = any(name.startswith("adversarial images") for name in record.sha256)
    parts = [
        _attacks(record),
        _certificate(record, contributions),
        TRUST[record.trust],
        "replayable" if replayable else "adversarial images not kept",
        f"trained with {trainings} seeds" if trainings else "one training",
    ]
    line = "; ".join(parts)
    return Verdict(line[0].upper() + line[1:] + ".", tuple(_warnings(record, contributions)))


def _attacks(record: Record) -> str:
    checks = record.reliability
    if checks is None:
        return "the attacks on it were not checked"
    if checks.failing:
        warn = "warns" if len(checks.failing) == 1 else "warn"
        return f"{len(checks.failing)} of {len(checks.signals)} checks {warn} that the attacks may have failed"
    return f"none of {len(checks.signals)} checks warns that the attacks may have failed"


def _certificate(record: Record, contributions: Sequence[Contribution]) -> str:
    if any(contribution.contradicted for contribution in contributions):
        return "certificate contradicted"
    return "certificate audited" if record.certificate else "no certificate"


def _warnings(record: Record, contributions: Sequence[Contribution]) -> list[tuple[str, str]]:
    warnings = []
    for contribution in contributions:
        for image in contribution.contradicted:
            sentence = f"Certified at l2 {image.certified:.4g} and broken at {image.l2:.4g} by {contribution.credit}"
            warnings.append((f"image {image.image} contradicts the certificate", f"{sentence}: nothing counts as certified."))
    for sign in record.reliability.failing if record.reliability else ():
        warnings.append((sign.name, f"{sign.explanation} Measured: {sign.measured}."))
    flagged = [attack for attack in record.attacks if attack.warnings]
    for attack in flagged:
        warnings.append((f"{attack.id} warns", " ".join(attack.warnings)))
    overfitting = record.training.overfitting if record.training else None
    if overfitting and overfitting.found:
        sentence = "Training made it robust to the attack that it was trained on, and less to others (Wong et al. 2020)."
        warnings.append(("catastrophic overfitting", sentence))
    if record.division == "open":
        why = "; ".join(record.division_reasons)
        warnings.append(("open division", f"{why}: its numbers depend on chance, or on gradients that attacks cannot use."))
    if record.wall == "none":
        warnings.append(("no sandbox", "The row's own code ran without a sandbox."))
    return warnings
