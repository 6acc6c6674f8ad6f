"""Two builds of a row compared, such as the published Record with one that was just built. Pure: Records in, lines out.

Where both were computed in the same arithmetic (`differences` finds none), every number, every image's verdict and radius
and every sha256 must be the same. Elsewhere training ends in other weights, as another seed would: RULE says what is
allowed there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from benchmark.records.per_image import PerImage, counts
from benchmark.records.record import Record

FALSE_ALARMS = 0.01  # over all numbers of all rows that are compared by chance

RULE = (
    "in the same arithmetic nothing may differ but the code's digests; elsewhere a number fails where McNemar's exact test "
    "over its images rejects that what changed is as likely to have become better as worse, at "
    f"{FALSE_ALARMS:.0%} for all such numbers of the table together (Bonferroni), or, of the same weights, where it "
    "differs by more than 1 image; sha256 of weights, evidence and adversarial images, and what an attack's components "
    "leave, are not compared there"
)
Verdict = Literal["same", "within", "OUTSIDE"]


@dataclass(frozen=True)
class Built:
    """A row as published or as built: its Record, its images where they are kept, and `runtime.machine.machine()` of where
    it was computed, where that is known.
    """

    record: Record
    images: PerImage | None
    machine: Mapping[str, str] | None


@dataclass(frozen=True)
class Line:
    """One number or fact of a row.

    Attributes:
        changed: of how many images the verdict changed, where images were compared in pairs.
        p: of McNemar's test, where chance is allowed.
    """

    metric: str
    published: str
    built: str
    verdict: Verdict
    changed: int | None = None
    p: float | None = None


@dataclass(frozen=True)
class RowComparison:
    """A row's `lines`; `notes` are no failures; a `problem` is why the row as a whole fails."""

    row: str
    lines: tuple[Line, ...] = ()
    notes: tuple[str, ...] = ()
    problem: str = ""

    @property
    def outside(self) -> list[Line]:
        return [line for line in self.lines if line.verdict == "OUTSIDE"]

    @property
    def failed(self) -> bool:
        return bool(self.problem or self.outside)


def compare_rows(
    published: Mapping[str, Built], built: Mapping[str, Built], required: Iterable[str]
) -> list[RowComparison]:
    """Compare every row that is required or published, in order.

    Args:
        required: rows that must be there. Others are compared where both sides are; where one is missing, a note says so.
    """
    required, rows = set(required), []
    for row in sorted(required | set(published)):
        if row in published and row in built:
            rows.append(compare_row(published[row], built[row]))
            continue
        if row in published:
            words = "is published and not built" + ("; run `rvb repro`" if row in required else " here")
        elif row in built:
            words = f"is built and not published; run `rvb publish {row}`"
        else:
            words = "is neither published nor built; run `rvb repro`, then `rvb publish`"
        rows.append(RowComparison(row, problem=words) if row in required else RowComparison(row, notes=(words,)))
    # one bound for the p values of all rows, so that the false alarms of the table are stated as a whole
    bound = FALSE_ALARMS / max(1, sum(line.p is not None for row in rows for line in row.lines))

    def judged(line: Line) -> Line:
        return replace(line, verdict="OUTSIDE") if line.p is not None and line.p < bound else line

    return [replace(row, lines=tuple(map(judged, row.lines))) for row in rows]


def compare_row(published: Built, built: Built, *, alike: bool = False) -> RowComparison:
    """Compare one row. Lines with a `p` are judged with those of the other rows, by `compare_rows`.

    Args:
        alike: compare as if both sides had been computed in the same arithmetic: every difference is outside.
    """
    before, now = published.record, built.record
    if before.track_version != now.track_version:
        versions = f"version {before.track_version} published, {now.track_version} built"
        return RowComparison(now.row, problem=f"is of other rules: track {now.track} {versions}; publish it again")
    if before.n != now.n:
        words = f"counts other images: n {before.n} published, {now.n} built; publish it again"
        return RowComparison(now.row, problem=words)
    if published.images is None or built.images is None:
        side = "published" if published.images is None else "built"
        return RowComparison(now.row, problem=f"is {side} without its images (per_image.json); do that again")
    unlike = [] if alike else differences(published, built)
    notes = [f"is compared by chance, since {', '.join(unlike)}"] if unlike else []
    codes = [name for name in sorted({**before.codes, **now.codes}) if before.codes.get(name) != now.codes.get(name)]
    if codes:
        notes.append(f"was built by other code: {', '.join(codes)}")
    if unlike:
        lines = _by_chance(before, now, published.images, built.images)
    else:
        same_writer = (published.machine or {}).get("pyarrow") == (built.machine or {}).get("pyarrow")
        lines = _exactly(before, now, published.images, built.images, same_writer)
    return RowComparison(now.row, (*_facts(before, now), *lines), tuple(notes))


def differences(published: Built, built: Built) -> list[str]:
    """In what the two were not computed alike; empty where the same bytes are due.

    Portable arithmetic (runtime/arithmetic.py) is the same on every processor that has it; elsewhere the processor counts.
    The library of matrix products counts everywhere: portable ones were MKL's before they were OpenBLAS's.
    """
    if published.machine is None or built.machine is None:
        return ["it is not known which machine published it"]
    before, now = _computed_by(published), _computed_by(built)
    if before.get("arithmetic") == now.get("arithmetic") == "portable":
        for name in ("processor", "capability"):
            before.pop(name, None)
            now.pop(name, None)
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    return [f"{name} was {before.get(name, 'unknown')} and is {now.get(name, 'unknown')}" for name in names]


def _computed_by(row: Built) -> dict[str, str]:
    """Python counts by its minor version; pyarrow does not, since it only writes what was computed."""
    found = {**row.record.environment, **(row.machine or {})}
    found.pop("pyarrow", None)
    if "python" in found:
        found["python"] = ".".join(found["python"].split(".")[:2])
    return found


def _facts(published: Record, built: Record) -> list[Line]:
    """What depends on no machine; of settings and rules only those that differ."""

    def values(record: Record) -> dict[str, object]:
        smoothed, corrupted = record.smoothed, record.corrupted
        return {
            "division": record.division, "trust": record.trust, "seed": record.seed,
            "parameters": record.parameters, "FLOPs": record.flops, "settings": record.settings,
            "smoothing": smoothed and smoothed.rules, "corruptions": corrupted and corrupted.rules,
            **{f"{attack.id}: parameters": (attack.spec, attack.engine) for attack in record.attacks},
        }  # fmt: skip

    before, now, lines = values(published), values(built), []
    for name in [name for name in before if name in now]:  # the number of an attack that one side lacks is told
        one, other = before[name], now[name]
        if isinstance(one, str | int):
            lines.append(_line(name, str(one), str(other)))
        elif one != other:
            lines.append(Line(name, "as published", "others", "OUTSIDE"))
    names = [name for name in published.sha256 | built.sha256 if name.startswith("data ")]
    return lines + _digests(published, built, names)


def _exactly(published: Record, built: Record, before: PerImage, now: PerImage, evidence: bool) -> list[Line]:
    """Every number, image and digest has to be the same.

    Args:
        evidence: whether the two files of evidence were written by the same pyarrow, and so are the same bytes.
    """
    ours, theirs = counts(published), counts(built)
    for side, record in ((ours, published), (theirs, built)):  # where attacks stop on the way depends on rounding
        for attack in record.attacks:
            side |= {f"{attack.id} after {part}": (left, attack.accuracy.n) for part, left in attack.remaining.items()}
    lines = [_count(name, ours.get(name), theirs.get(name)) for name in {**ours, **theirs}]
    for name in {**before.scores, **now.scores}:
        lines.append(_by_image(f"images of {name}", before.scores.get(name, ""), now.scores.get(name, "")))
    for name in {**before.radii, **now.radii}:
        lines.append(_by_image(f"{name} radii", before.radii.get(name, ()), now.radii.get(name, ())))
    others = ("data ", "code ") if evidence else ("data ", "code ", "evidence")
    names = [name for name in published.sha256 | built.sha256 if not name.startswith(others)]
    return lines + _digests(published, built, names)


def _by_chance(published: Record, built: Record, before: PerImage, now: PerImage) -> list[Line]:
    """Every number of images, with McNemar's p: the chance of so one-sided a change if each changed image is as likely to
    have become better as worse. Of the same weights rounding alone differs: no test, but at most one image.
    """
    from benchmark.records.comparison import mcnemar  # imports numpy, before which a process has to fix its arithmetic

    same_weights = published.sha256["weights"] == built.sha256["weights"]
    ours, theirs = counts(published), counts(built)
    lines = []
    for name in {**ours, **theirs}:
        line = _count(name, ours.get(name), theirs.get(name))
        one, other = before.score(name), now.score(name)
        if name in ours and name in theirs and one is not None and other is not None:
            changes, p = sum(a != b for a, b in zip(one, other, strict=True)), mcnemar(other, one)
            allowed = ours[name][1] // published.n  # an image's corrupted copies are one image
            outside = same_weights and abs(ours[name][0] - theirs[name][0]) > allowed
            verdict: Verdict = "OUTSIDE" if outside else "within" if changes else "same"
            line = replace(line, verdict=verdict, changed=changes, p=None if same_weights else p)
        lines.append(line)
    return lines


def _line(name: str, one: str, other: str) -> Line:
    return Line(name, one, other, "same" if one == other else "OUTSIDE")


def _count(name: str, before: tuple[int, int] | None, now: tuple[int, int] | None) -> Line:
    """A number of images; outside unless it is the same."""
    words = [f"{count[0]} of {count[1]}" if count else "none" for count in (before, now)]
    return _line(name, *words)


def _by_image(name: str, before: Sequence[object], now: Sequence[object]) -> Line:
    """Each image's verdict or radius; the first that differs is named."""
    if len(before) != len(now):
        return _line(name, f"{len(before)} images", f"{len(now)} images")
    other = [image for image, (a, b) in enumerate(zip(before, now, strict=True)) if a != b]
    words = [f"image {other[0]}: {values[other[0]]}" if other else "" for values in (before, now)]
    return replace(_line(name, *words), changed=len(other))


def _digests(published: Record, built: Record, names: Iterable[str]) -> list[Line]:
    digests = [(name, published.sha256.get(name, "none"), built.sha256.get(name, "none")) for name in sorted(names)]
    return [
        replace(_line(f"sha256 of {name}", one, other), published=one[:12], built=other[:12])
        for name, one, other in digests
    ]
