"""A paper's claims beside the numbers measured here, and why they differ or are not comparable. Pure.

One rule holds for claims of rows and of studies (`obstacle`): a difference is drawn only where the submission states the
number for the track's own data, at the same radius, by the same method, and of as many images.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from benchmark.records.accuracy import Proportion
from benchmark.records.record import Record, headline
from benchmark.records.study_table import Spread
from benchmark.specs.submission import Claim
from leaderboard.rank import Row

KINDS = {"clean": "clean", "robust": "robust", "autoattack": "robust", "certified": "certified", "smoothed": "smoothed"}
METRIC = re.compile(
    r"(?P<kind>[A-Za-z]+(?:-[0-9]+)?)(?: (?P<norm>Linf|L2) (?P<eps>[0-9.]+(?:e-?[0-9]+)?(?:/[0-9]+)?))?", re.IGNORECASE
)
IMAGES = re.compile(r"([0-9][0-9,]*) images")  # of a claim's source, where it states how many the paper evaluates

Obstacle = Literal["other data", "other images", "other radius", "other method"]


@dataclass(frozen=True)
class Compared:
    """A claim. `measured` is None if no number here is comparable. `why` says why the two differ or are not compared."""

    claim: Claim
    measured: Proportion | None
    spread: Spread | None
    why: str

    @property
    def difference(self) -> float | None:
        """Return measured minus claimed, a fraction."""
        return None if self.measured is None else self.measured.value - self.claim.value


def compare(row: Row, columns: list[str]) -> list[Compared]:
    """Return every claim of the row's Record, in its order."""
    numbers = headline(row.record)
    spreads = dict(zip(columns, row.spreads, strict=True))
    compared = []
    for claim in row.record.claims:
        name = name_of(claim, record=row.record)
        measured, spread = (numbers[name], spreads.get(name)) if name else (None, None)
        why = _reason(row, claim, measured, spread) if measured else _not_comparable(row, claim)
        compared.append(Compared(claim, measured, spread, why))
    return compared


def name_of(claim: Claim, record: Record) -> str | None:
    """Return the name of the Record's number that a claim is comparable with; None if there is none."""
    numbers = headline(record)
    return next((name for name, p in numbers.items() if obstacle(claim, record.track, name, p.n) is None), None)


def obstacle(claim: Claim, track: str, name: str, images: int) -> Obstacle | None:
    """Return why a claim is not comparable with the number `name` of `images` images of `track`; None if it is.

    The numbers of images are compared only if the claim's source states one.
    """
    if claim.track != track:
        return "other data"
    if (stated := _images(claim)) and stated != images:
        return "other images"
    if same_number(claim.metric, [name]):
        return None
    claimed, headline_number = METRIC.match(claim.metric), METRIC.fullmatch(name)
    alike = claimed and headline_number and _kind(claimed) == _kind(headline_number)
    return "other radius" if alike and (_read(claim.metric) or "normalised" in claim.metric) else "other method"


def same_number(metric: str, names: list[str]) -> str | None:
    """Return which of the headline `names` a claim's metric is, such as "robust Linf 0.0313725" for "AutoAttack Linf 8/255":
    the same kind and norm, radii alike to a thousandth. None where the metric says more than these words.
    """
    claimed = _read(metric)
    return next((name for name in names if claimed is not None and _alike(claimed, _read(name))), None)


def _read(metric: str) -> tuple[str, str, float] | None:
    match = METRIC.fullmatch(metric.strip())
    if not match or (match["norm"] is None) != (_kind(match)[0] == "clean"):
        return None
    kind, _ = _kind(match)
    if match["norm"] is None:
        return kind, "", 0.0
    over, _, under = match["eps"].partition("/")
    try:
        return kind, match["norm"].lower(), float(over) / float(under or 1)
    except (ValueError, ZeroDivisionError):
        return None


def _kind(match: re.Match[str]) -> tuple[str, str]:
    """Return a metric's kind, which is an attack's name if it is none of KINDS, and its norm."""
    kind = match["kind"].lower()
    return KINDS.get(kind, kind), (match["norm"] or "").lower()


def _images(claim: Claim) -> int | None:
    stated = IMAGES.search(claim.source)
    return int(stated[1].replace(",", "")) if stated else None


def _alike(first: tuple[str, str, float], other: tuple[str, str, float] | None) -> bool:
    return other is not None and first[:2] == other[:2] and math.isclose(first[2], other[2], rel_tol=1e-3)


def _not_comparable(row: Row, claim: Claim) -> str:
    record = row.record
    if claim.track != record.track:
        return f"other data: {claim.track}"
    if (name := same_number(claim.metric, [*headline(record)])) and (stated := _images(claim)):
        return f"other images: {stated:,} in the paper, {headline(record)[name].n:,} here"
    if claim.metric.lower().startswith("certified") and not record.certified:
        return "this row certifies nothing here"
    return "the track measures no number of this name and radius"


def _reason(row: Row, claim: Claim, measured: Proportion, spread: Spread | None) -> str:
    record = row.record
    if measured.low <= claim.value <= measured.high:
        return "the claim lies within the interval: no difference is shown"
    if spread is not None and spread.low <= claim.value <= spread.high:
        return f"the claim lies within the range of {len(spread.values)} trainings here"
    evaluated = f"evaluated on {measured.n:,} images; the interval is about other images, not about other trainings"
    if record.trust == "rebuilt":
        return f"trained again here, by the settings below, with one seed, and {evaluated}"
    return f"weights from elsewhere, attacked here, and {evaluated}"
