"""The numbers and facts of two builds of a row, one by one: exactly, or by chance over their images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from benchmark.results.paired import mcnemar
from benchmark.results.per_image import PerImage, counts
from benchmark.results.record import Record

Verdict = Literal["same", "within", "OUTSIDE"]


@dataclass(frozen=True)
class Line:
    """One number or fact of a row.

    Attributes:
        images: by how many images it differs; None where nothing is counted.
        changed: of how many images the verdict changed, where images were compared in pairs.
        p: of McNemar's test, where chance is allowed.
    """

    metric: str
    published: str
    built: str
    verdict: Verdict
    images: int | None = None
    changed: int | None = None
    p: float | None = None


def changed_codes(published: Record, built: Record) -> list[str]:
    """The stages whose code has another digest, which any edit changes."""
    return [
        name.removeprefix("code ")
        for name in sorted(published.sha256.keys() | built.sha256.keys())
        if name.startswith("code ") and published.sha256.get(name) != built.sha256.get(name)
    ]


def facts(published: Record, built: Record) -> list[Line]:
    """What depends on no machine."""
    named: list[tuple[str, object, object]] = [
        ("division", published.division, built.division),
        ("trust", published.trust, built.trust),
        ("seed", published.seed, built.seed),
        ("parameters", published.parameters, built.parameters),
        ("FLOPs", published.flops, built.flops),
    ]
    others: list[tuple[str, object, object]] = [
        ("settings", published.settings, built.settings),
        ("smoothing", published.smoothed and published.smoothed.rules, built.smoothed and built.smoothed.rules),
        ("corruptions", published.corrupted and published.corrupted.rules, built.corrupted and built.corrupted.rules),
    ]
    named += [(what, "as published", "others") for what, one, other in others if one != other]
    lines = [Line(what, str(one), str(other), "same" if one == other else "OUTSIDE") for what, one, other in named]
    specs = [{attack.id: (attack.spec, attack.engine) for attack in record.attacks} for record in (published, built)]
    lines += [
        Line(f"{name}: parameters", "as published", "others", "OUTSIDE")
        for name in specs[0]
        if name in specs[1] and specs[0][name] != specs[1][name]
    ]
    return lines + _same_digests(published, built, lambda name: name.startswith("data "))


def exactly(published: Record, built: Record, before: PerImage, now: PerImage, *, evidence: bool) -> list[Line]:
    """Every number, image and digest has to be the same.

    Args:
        evidence: whether the two files of evidence were written by the same pyarrow, and so are the same bytes.
    """
    ours, theirs = (counts(record) | _parts(record) for record in (published, built))
    lines = [_count(name, ours.get(name), theirs.get(name)) for name in dict.fromkeys([*ours, *theirs])]
    for name in dict.fromkeys([*before.scores, *now.scores]):
        lines.append(_same_images(f"images of {name}", before.scores.get(name, ""), now.scores.get(name, "")))
    for name in dict.fromkeys([*before.radii, *now.radii]):
        lines.append(_same_images(f"{name} radii", before.radii.get(name, ()), now.radii.get(name, ())))
    others = ("data ", "code ") if evidence else ("data ", "code ", "evidence")
    return lines + _same_digests(published, built, lambda name: not name.startswith(others))


def by_chance(published: Record, built: Record, before: PerImage, now: PerImage) -> list[Line]:
    """Every number of images, with McNemar's p: the chance of so one-sided a change if each changed image is as likely to
    have become better as worse. Of the same weights rounding alone differs: no test, but at most one image.
    """
    same_weights = published.sha256["weights"] == built.sha256["weights"]
    ours, theirs = counts(published), counts(built)
    lines = []
    for name in dict.fromkeys([*ours, *theirs]):
        line = _count(name, ours.get(name), theirs.get(name))
        one, other = before.score(name), now.score(name)
        if name in ours and name in theirs and one is not None and other is not None:
            changes, p = sum(a != b for a, b in zip(one, other, strict=True)), mcnemar(other, one)
            allowed = ours[name][1] // published.n  # an image's corrupted copies are one image
            outside = same_weights and line.images is not None and line.images > allowed
            verdict: Verdict = "OUTSIDE" if outside else "within" if changes else "same"
            line = replace(line, verdict=verdict, changed=changes, p=None if same_weights else p)
        lines.append(line)
    return lines


def _count(name: str, before: tuple[int, int] | None, now: tuple[int, int] | None) -> Line:
    """A number of images; outside unless it is the same."""
    words = [f"{one[0]} of {one[1]}" if one else "none" for one in (before, now)]
    images = abs(before[0] - now[0]) if before and now else None
    return Line(name, words[0], words[1], "same" if before == now else "OUTSIDE", images)


def _same_images(name: str, before: Sequence[object], now: Sequence[object]) -> Line:
    """Each image's verdict or radius; the first that differs is named."""
    if len(before) != len(now):
        return Line(name, f"{len(before)} images", f"{len(now)} images", "OUTSIDE")
    other = [image for image, (a, b) in enumerate(zip(before, now, strict=True)) if a != b]
    if not other:
        return Line(name, "", "", "same", changed=0)
    words = [f"image {other[0]}: {values[other[0]]}" for values in (before, now)]
    return Line(name, words[0], words[1], "OUTSIDE", changed=len(other))


def _parts(record: Record) -> dict[str, tuple[int, int]]:
    """What each attack's components left: where attacks stop on the way depends on rounding."""
    return {
        f"{attack.id} after {part}": (left, attack.accuracy.n)
        for attack in record.attacks
        for part, left in attack.remaining.items()
    }


def _same_digests(published: Record, built: Record, chosen: Callable[[str], bool]) -> list[Line]:
    lines = []
    for name in sorted(filter(chosen, published.sha256.keys() | built.sha256.keys())):
        one, other = (record.sha256.get(name, "none") for record in (published, built))
        lines.append(Line(f"sha256 of {name}", one[:12], other[:12], "same" if one == other else "OUTSIDE"))
    return lines
