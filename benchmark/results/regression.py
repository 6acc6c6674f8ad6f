"""Does a row that was just built say what its published Record says? Pure: Records in, differences out.

Where both were computed in the same arithmetic (`alike`), every number, every image's verdict and radius and every sha256
must be the same. Elsewhere training ends in other weights, as another seed would: RULE says what is allowed there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from benchmark.results.comparison import Line, by_chance, changed_codes, exactly, facts
from benchmark.results.per_image import PerImage
from benchmark.results.record import Record

FALSE_ALARMS = 0.01  # over all numbers of all rows that are compared by chance

RULE = (
    "in the same arithmetic nothing may differ but the code's digests; elsewhere a number fails where McNemar's exact test "
    "over its images rejects that what changed is as likely to have become better as worse, at "
    f"{FALSE_ALARMS:.0%} for all such numbers of the table together (Bonferroni), or, of the same weights, where it "
    "differs by more than 1 image; sha256 of weights, evidence and adversarial images, and what an attack's components "
    "leave, are not compared there"
)


@dataclass(frozen=True)
class Built:
    """A row as published or as built: its Record, its images where they are kept, and `runtime.machine.machine()` of where
    it was computed, where that is known.
    """

    record: Record
    images: PerImage | None
    machine: Mapping[str, str] | None


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
    published: Mapping[str, Built], built: Mapping[str, Built], wanted: Iterable[str]
) -> list[RowComparison]:
    """Every row that is wanted or published, in order.

    Args:
        wanted: rows that must be there. Others are compared where both sides are; where one is missing, a note says so.
    """
    must, found = set(wanted), []
    for row in sorted(must | set(published)):
        if row in published and row in built:
            found.append(compare_row(published[row], built[row]))
            continue
        if row in published:
            what = "is published and not built"
            what += "; run `rvb repro`" if row in must else " here"
        else:
            what = "is built and not published" if row in built else "is neither published nor built"
            what += f"; run `rvb publish {row}`" if row in built else "; run `rvb repro`, then `rvb publish`"
        found.append(RowComparison(row, problem=what) if row in must else RowComparison(row, notes=(what,)))
    return _judged(found)


def compare_row(published: Built, built: Built, *, alike: bool = False) -> RowComparison:
    """One row, where it is `alike` as if both sides had been computed so: every difference is outside. Lines with a `p` are
    judged with those of the other rows, by `compare_rows`.
    """
    before, now = published.record, built.record
    if before.track_version != now.track_version:
        versions = f"version {before.track_version} published, {now.track_version} built"
        return RowComparison(now.row, problem=f"is of other rules: track {now.track} {versions}; publish it again")
    if before.n != now.n:
        return RowComparison(
            now.row, problem=f"counts other images: n {before.n} published, {now.n} built; publish it again"
        )
    unlike = [] if alike else differences(published, built)
    notes = [f"is compared by chance, since {', '.join(unlike)}"] if unlike else []
    if codes := changed_codes(before, now):
        notes.append(f"was built by other code: {', '.join(codes)}")
    if published.images is None or built.images is None:
        which = "published" if published.images is None else "built"
        return RowComparison(now.row, problem=f"is {which} without its images (per_image.json); do that again")
    pairs = published.images, built.images
    if unlike:
        lines = by_chance(before, now, *pairs)
    else:
        same_writer = (published.machine or {}).get("pyarrow") == (built.machine or {}).get("pyarrow")
        lines = exactly(before, now, *pairs, evidence=same_writer)
    return RowComparison(now.row, (*facts(before, now), *lines), tuple(notes))


def _judged(found: list[RowComparison]) -> list[RowComparison]:
    """Holds the p values of all rows against one bound, so that the false alarms of the table are stated as a whole."""
    tests = sum(line.p is not None for one in found for line in one.lines)
    bound = FALSE_ALARMS / max(tests, 1)

    def judged(line: Line) -> Line:
        return replace(line, verdict="OUTSIDE") if line.p is not None and line.p < bound else line

    return [replace(one, lines=tuple(map(judged, one.lines))) for one in found]


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


def _computed_by(one: Built) -> dict[str, str]:
    """Python counts by its minor version; pyarrow does not, since it only writes what was computed."""
    found = {**one.record.environment, **(one.machine or {})}
    found.pop("pyarrow", None)
    if "python" in found:
        found["python"] = ".".join(found["python"].split(".")[:2])
    return found
