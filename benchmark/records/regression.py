"""Compare two builds of a row, such as the published Record with one that was just built.

Computed in the same arithmetic (`differences` is empty), every number, every image's verdict and radius and every sha256
must be the same. Otherwise training ends in other weights, as another seed would: RULE says what is allowed then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    """A published or built row: its Record, its numbers by image, and the `machine()` that computed it; {} if unknown."""

    record: Record
    images: PerImage
    machine: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Line:
    """One number or fact of a row.

    Attributes:
        changed: the number of images whose verdict changed, where images were compared in pairs.
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


def compare_rows(published: Mapping[str, Built], built: Mapping[str, Built], required: Iterable[str]) -> list[RowComparison]:
    """Compare every row that is required or published, in order.

    Args:
        required: rows that must be on both sides. Of another row that one side lacks, a note says so.
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
    # one bound for the p values of all rows, so that RULE states the false alarms of the whole table
    bound = FALSE_ALARMS / max(1, sum(line.p is not None for row in rows for line in row.lines))

    def decided(line: Line) -> Line:
        return replace(line, verdict="OUTSIDE") if line.p is not None and line.p < bound else line

    return [replace(row, lines=tuple(map(decided, row.lines))) for row in rows]


def compare_row(published: Built, built: Built, *, alike: bool = False) -> RowComparison:
    """Compare one row. `compare_rows` decides on lines with a `p`, together with those of the other rows. `alike`: compare as
    if both sides had been computed in the same arithmetic: every difference is outside.
    """
    before, after = published.record, built.record
    if before.track_version != after.track_version:
        versions = f"version {before.track_version} published, {after.track_version} built"
        return RowComparison(after.row, problem=f"is of other rules: track {after.track} {versions}; publish it again")
    if before.n != after.n:
        words = f"counts other images: n {before.n} published, {after.n} built; publish it again"
        return RowComparison(after.row, problem=words)
    unlike = [] if alike else differences(published, built)
    notes = [f"is compared by chance, since {', '.join(unlike)}"] if unlike else []
    codes = [name for name in sorted({**before.codes, **after.codes}) if before.codes.get(name) != after.codes.get(name)]
    if codes:
        notes.append(f"was built by other code: {', '.join(codes)}")
    if unlike:
        lines = _by_chance(before, after, published.images, built.images)
    else:
        patterns = {bool(row.attention and row.attention.mean) for row in (before, after)}  # older evidence has none
        same_writer = published.machine.get("pyarrow") == built.machine.get("pyarrow") and len(patterns) == 1
        lines = _exactly(before, after, published.images, built.images, same_writer)
    return RowComparison(after.row, (*_facts(before, after), *lines), tuple(notes))


def differences(published: Built, built: Built) -> list[str]:
    """Return how the two computations differed, in words; nothing where they must give the same bytes.

    Portable arithmetic (runtime/arithmetic.py) is the same on every processor that has it; in other arithmetic the processor
    counts. The library of matrix products always counts: portable products were MKL's before they were OpenBLAS's.
    """
    if not (published.machine and built.machine):
        return ["it is not known which machine published it"]
    before, after = ({**row.record.environment, **row.machine} for row in (published, built))
    ignored = {"pyarrow", "robust-vit-bench"}  # one only writes what was computed, the other's code has digests
    if before.get("arithmetic") == after.get("arithmetic") == "portable":
        ignored |= {"processor", "capability"}
    for computed in (before, after):
        if "python" in computed:  # counts by its minor version
            computed["python"] = ".".join(computed["python"].split(".")[:2])
    names = [name for name in sorted({*before, *after} - ignored) if before.get(name) != after.get(name)]
    return [f"{name} was {before.get(name, 'unknown')} and is {after.get(name, 'unknown')}" for name in names]


def _facts(published: Record, built: Record) -> list[Line]:
    """Compare what depends on no machine. Settings and rules give a line only where they differ."""

    def values(record: Record) -> dict[str, object]:
        smoothed, corrupted = record.smoothed, record.corrupted
        return {
            "division": record.division, "trust": record.trust, "seed": record.seed,
            "parameters": record.parameters, "FLOPs": record.flops, "settings": record.settings,
            "smoothing": smoothed and smoothed.rules, "corruptions": corrupted and corrupted.rules,
            **{f"{attack.id}: parameters": (attack.spec, attack.engine) for attack in record.attacks},
        }  # fmt: skip

    before, after, lines = values(published), values(built), []
    for name in [name for name in before if name in after]:  # an attack that one side lacks has a line of its own
        if isinstance(before[name], str | int):
            lines.append(_line(name, str(before[name]), str(after[name])))
        elif before[name] != after[name]:
            lines.append(Line(name, "as published", "others", "OUTSIDE"))
    return lines + _digests(published, built, lambda name: name.startswith("data "))


def _exactly(published: Record, built: Record, before: PerImage, after: PerImage, evidence: bool) -> list[Line]:
    """Compare every number, image and digest; each must be the same. `evidence`: whether the same pyarrow wrote both files of
    evidence, so that they are the same bytes.
    """
    ours, theirs = counts(published), counts(built)
    for side, record in ((ours, published), (theirs, built)):  # how many images an attack leaves on the way
        for attack in record.attacks:
            side |= {f"{attack.id} after {part}": (left, attack.accuracy.n) for part, left in attack.remaining.items()}
    lines = [_count(name, ours.get(name), theirs.get(name)) for name in {**ours, **theirs}]
    for name in {**before.scores, **after.scores}:
        lines.append(_by_image(f"images of {name}", before.scores.get(name, ""), after.scores.get(name, "")))
    for name in {**before.radii, **after.radii}:
        lines.append(_by_image(f"{name} radii", before.radii.get(name, ()), after.radii.get(name, ())))
    others = ("data ", "code ") if evidence else ("data ", "code ", "evidence")
    return lines + _digests(published, built, lambda name: not name.startswith(others))


def _by_chance(published: Record, built: Record, before: PerImage, after: PerImage) -> list[Line]:
    """Compare every number of images by McNemar's p: the chance of so one-sided a change where better and worse are equally
    likely. With the same weights only rounding differs: no test, but at most one image.
    """
    from benchmark.records.comparison import mcnemar  # imports numpy, before which a process has to fix its arithmetic

    same_weights = published.sha256["weights"] == built.sha256["weights"]
    ours, theirs = counts(published), counts(built)
    lines = []
    for name in {**ours, **theirs}:
        line = _count(name, ours.get(name), theirs.get(name))
        score, other = before.score(name), after.score(name)
        if name in ours and name in theirs and score is not None and other is not None:
            changes, p = sum(a != b for a, b in zip(score, other, strict=True)), mcnemar(other, score)
            allowed = max(1, ours[name][1] // published.n)  # an image's corrupted copies are one image
            outside = same_weights and abs(ours[name][0] - theirs[name][0]) > allowed
            verdict: Verdict = "OUTSIDE" if outside else "within" if changes else "same"
            line = replace(line, verdict=verdict, changed=changes, p=None if same_weights else p)
        lines.append(line)
    return lines


def _line(name: str, before: str, after: str, changed: int | None = None) -> Line:
    return Line(name, before, after, "same" if before == after else "OUTSIDE", changed)


def _count(name: str, before: tuple[int, int] | None, after: tuple[int, int] | None) -> Line:
    old, new = (f"{count[0]} of {count[1]}" if count else "none" for count in (before, after))
    return _line(name, old, new)


def _by_image(name: str, before: Sequence[object], after: Sequence[object]) -> Line:
    """Compare each image's verdict or radius; the line names the first image that differs."""
    if len(before) != len(after):
        return _line(name, f"{len(before)} images", f"{len(after)} images")
    differing = [image for image, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    old, new = (f"image {differing[0]}: {values[differing[0]]}" if differing else "" for values in (before, after))
    return _line(name, old, new, len(differing))


def _digests(published: Record, built: Record, chosen: Callable[[str], bool]) -> list[Line]:
    names = sorted(filter(chosen, published.sha256 | built.sha256))
    lines = [_line(f"sha256 of {n}", published.sha256.get(n, "none"), built.sha256.get(n, "none")) for n in names]
    return [replace(line, published=line.published[:12], built=line.built[:12]) for line in lines]
