"""Whether a row can be believed, in one line, and what speaks against it, in plain words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmark.records.brought import Brought
from benchmark.records.record import Record

TRUST = {
    "rebuilt": "rebuilt here from scratch",
    "re-evaluated": "weights from elsewhere, attacked here",
    "replayed": "stored images and certificates evaluated again",
    "claimed": "the paper's own number, not measured here",
}


@dataclass(frozen=True)
class Verdict:
    """`line` is the whole in short; each of `doubts` is what was found (a few words) and what it means (a sentence)."""

    line: str
    doubts: tuple[tuple[str, str], ...]


def verdict(record: Record, brought: Sequence[Brought] = (), trainings: int = 0) -> Verdict:
    """`trainings`: over how many seeds the row was trained anew, 0 where it was not."""
    replayable = any(name.startswith("adversarial images") for name in record.sha256)
    parts = [
        _attacks(record),
        _certificate(record, brought),
        TRUST[record.trust],
        "replayable" if replayable else "its adversarial images are not kept",
        f"trained with {trainings} seeds" if trainings else "one training",
    ]
    line = "; ".join(parts)
    return Verdict(line[0].upper() + line[1:] + ".", tuple(_doubts(record, brought)))


def _attacks(record: Record) -> str:
    found = record.reliability
    if found is None:
        return "the attacks on it were not checked"
    if found.failing:
        warn = "warns" if len(found.failing) == 1 else "warn"
        return f"{len(found.failing)} of {len(found.signals)} checks {warn} that the attacks may have failed"
    return f"none of {len(found.signals)} checks warns of the attacks"


def _certificate(record: Record, brought: Sequence[Brought]) -> str:
    if any(one.contradicted for one in brought):
        return "certificate contradicted"
    return "certificate audited and held" if record.certificate else "no certificate"


def _doubts(record: Record, brought: Sequence[Brought]) -> list[tuple[str, str]]:
    found = []
    for one in brought:
        for image in one.contradicted:
            said = f"Certified at l2 {image.certified:.4g} and broken at {image.l2:.4g} by {one.credit}"
            found.append((f"image {image.image} contradicts the certificate", f"{said}: nothing counts as certified."))
    for sign in record.reliability.failing if record.reliability else ():
        found.append((sign.name, f"{sign.explanation} Measured: {sign.measured}."))
    flagged = [attack for attack in record.attacks if attack.warnings]
    for attack in flagged:
        found.append((f"{attack.id} warns", " ".join(attack.warnings)))
    overfitting = record.training.overfitting if record.training else None
    if overfitting and overfitting.found:
        said = "Training made it robust to the attack that it was trained on, and less to others (Wong et al. 2020)."
        found.append(("catastrophic overfitting", said))
    if record.division == "open":
        why = "; ".join(record.division_reasons)
        found.append(
            ("open division", f"{why}: its numbers depend on chance, or on gradients that attacks cannot use.")
        )
    if record.wall == "none":
        found.append(("no sandbox", "The row's own code ran without a sandbox."))
    return found
