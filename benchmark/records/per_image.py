"""A row's numbers image by image: small enough for git, so that two builds of a row are compared in pairs."""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from benchmark.records.accuracy import Proportion
from benchmark.records.record import Record, headline
from benchmark.specs.base import Frozen

ROUNDING = 1e-6  # of a radius, by which a distance is clearly within it


class PerImage(Frozen):
    """The numbers of a Record by evaluation image. In the open division each attack's own number is missing.

    Attributes:
        scores: by the name of a number (`counts`), a digit an image: 1 where it counts and 0 where it does not;
            for corruptions the number of severities at which it is right. Of the first images where only those are attacked.
        radii: certified l2 radii by certificate, in pixels of [0, 1]; 0 where nothing is certified.
        broken: l2 distances of each attacked image's nearest adversarial image, in pixels of [0, 1]; None where no attack
            broke it. Empty, and left out of JSON, where distances are unknown.
    """

    row: str
    scores: dict[str, str]
    radii: dict[str, tuple[float, ...]] = Field(default={})
    broken: tuple[float | None, ...] = ()

    @model_serializer(mode="wrap")
    def _without_nothing(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content = serialise(self)
        if not content["broken"]:
            del content["broken"]
        return content

    def score(self, name: str) -> list[int] | None:
        """Each image's share of a number; None where it is not counted by image. `corrupted` sums the corruptions."""
        if name in self.scores:
            return [int(digit) for digit in self.scores[name]]
        parts = [digits for part, digits in self.scores.items() if part.startswith(f"{name}: ")]
        return [sum(map(int, digits)) for digits in zip(*parts, strict=True)] if parts else None


def counts(record: Record) -> dict[str, tuple[int, int]]:
    """Return (images that hold, images counted) by name: the headline numbers, each attack's, and those beside them.

    An image's corrupted copies are counted one by one.
    """
    return {name: (share.count, share.n) for name, share in shares(record).items()}


def shares(record: Record) -> dict[str, Proportion]:
    """Return the same numbers as shares."""
    numbers = headline(record) | {attack.id: attack.accuracy for attack in record.attacks}
    if record.smoothed:
        numbers["smoothed clean"] = record.smoothed.clean
    corruptions = record.corrupted.corruptions if record.corrupted else ()
    return numbers | {f"corrupted: {corruption.name}": corruption.mean for corruption in corruptions}


class Contradicted(NamedTuple):
    """What of a Record its numbers by image contradict; for a single image also what is `recorded`, and its `verdict`."""

    what: str
    image: int | None = None
    recorded: str = ""
    verdict: str = ""

    @property
    def words(self) -> str:
        return self.what if self.image is None else f"image {self.image}: {self.recorded}, but {self.verdict}"


def contradictions(record: Record, images: PerImage) -> list[Contradicted]:
    """Return what contradicts a Record in its numbers by image: sums, distances, certified <= robust <= clean."""
    problems = []
    own = {attack.id for attack in record.attacks} if record.division == "open" else set()
    for name, (count, n) in counts(record).items():
        score = images.score(name)
        if score is None and name in own:
            continue  # counted against a clean pass of its own
        images_counted = record.n if name.startswith("corrupted") else n
        if score is None or len(score) != images_counted or sum(score) != count:
            total = "nothing" if score is None else f"{sum(score)} over {len(score)} images"
            problems.append(Contradicted(f"{name} is {count} and its images give {total}"))
    for name, radii in images.radii.items():
        if len(radii) != record.n:
            problems.append(Contradicted(f"{name} has {len(radii)} radii"))
    attacked = min((result.accuracy.n for result in record.robust), default=record.n)
    if images.broken and len(images.broken) != attacked:
        problems.append(Contradicted(f"{len(images.broken)} distances of {attacked} attacked images"))
    clean, radii = images.scores.get("clean", ""), images.radii.get("certified", ())
    for image, (right, radius) in enumerate(zip(clean, radii, strict=False)):
        if radius > 0 and right == "0":
            what, recorded = "certified, but wrong when clean", f"certified at l2 {radius:.6g}"
            problems.append(Contradicted(what, image, recorded, "wrong when clean"))
    for image, (at, radius) in enumerate(zip(images.broken or (), radii, strict=False)):
        if at is not None and at < radius:
            nearest = f"an adversarial image lies at {at:.6g}"
            problems.append(Contradicted("certified, but broken", image, f"certified at l2 {radius:.6g}", nearest))
    for result in record.robust:
        name, norm, eps = f"robust {result.threat.label}", result.threat.norm, result.threat.eps
        robust = images.scores.get(name, "")
        if len(robust) > record.n:
            problems.append(Contradicted(f"{name} counts {len(robust)} images of {record.n}"))
        for image, (stood, right) in enumerate(zip(robust, clean, strict=False)):
            if stood > right:
                problems.append(Contradicted(f"{name}, but wrong when clean", image, name, "wrong when clean"))
        if norm == "L2":
            for image, (stood, radius) in enumerate(zip(robust, radii, strict=False)):
                if stood == "0" and radius >= eps > 0:
                    what, recorded = f"certified, but not {name}", f"certified at l2 {radius:.6g}"
                    problems.append(Contradicted(what, image, recorded, f"not {name}"))
            pairs = zip(robust, images.broken, strict=False)
            if any(stood == "1" and at is not None and at < eps * (1 - ROUNDING) for stood, at in pairs):
                problems.append(Contradicted(f"{name} counts an image whose nearest adversarial image lies within it"))
    return problems
