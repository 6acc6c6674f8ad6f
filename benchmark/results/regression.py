"""Does a row that was just built say what its published Record says? Pure: Records in, differences out.

On the machine that published (same processor, threads and versions) every number and sha256 must be the same. Elsewhere
training is not portable: the same commit on an AMD EPYC and an Intel Xeon differed by up to 8 images of 100 for an
adversarially trained row under AutoAttack, and by up to 5 for certified accuracy. RULE says what is allowed there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from benchmark.results.headline import headline
from benchmark.results.proportion import Proportion
from benchmark.results.record import Record

SHARE = 0.1  # of the images counted, where the weights were trained on another machine

RULE = (
    "on the machine that published (its processor, threads and versions) nothing may differ but the code's digests; "
    f"elsewhere a count may differ by {SHARE:.0%} of its images, by 1 image where the weights are byte for byte the same; "
    "sha256 of weights, evidence and adversarial images, and what an attack's components leave, are not compared there"
)

Verdict = Literal["same", "within", "OUTSIDE"]


@dataclass(frozen=True)
class Line:
    """One number or fact of a row. `images` of difference and how many are `allowed`: None where nothing is counted."""

    metric: str
    published: str
    built: str
    verdict: Verdict
    images: int | None = None
    allowed: int | None = None


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
    published: Mapping[str, Record],
    built: Mapping[str, Record],
    machines: Mapping[str, Mapping[str, str]],
    machine: Mapping[str, str],
    wanted: Iterable[str],
) -> list[RowComparison]:
    """Every row that is wanted or published, in order.

    Args:
        published, built: Records by row.
        machines: `runtime.machine.machine()` of where each row was published.
        machine: the same of where `built` was built.
        wanted: rows that must be there. Others are compared where both Records are; where one is missing, a note says so.
    """
    must, found = set(wanted), []
    for row in sorted(must | set(published)):
        if row in published and row in built:
            found.append(compare_row(published[row], built[row], machines.get(row), machine))
            continue
        if row in published:
            what = "is published and not built"
            what += "; run `rvb repro`" if row in must else " here"
        else:
            what = "is built and not published" if row in built else "is neither published nor built"
            what += f"; run `rvb publish {row}`" if row in built else "; run `rvb repro`, then `rvb publish`"
        found.append(RowComparison(row, problem=what) if row in must else RowComparison(row, notes=(what,)))
    return found


def compare_row(
    published: Record, built: Record, there: Mapping[str, str] | None, here: Mapping[str, str]
) -> RowComparison:
    """One row, published on the machine `there` (None: unknown) and built `here`."""
    if published.track_version != built.track_version:
        versions = f"version {published.track_version} published, {built.track_version} built"
        return RowComparison(built.row, problem=f"is of other rules: track {built.track} {versions}; publish it again")
    if published.n != built.n:
        counted = f"{published.n} published, {built.n} built"
        return RowComparison(built.row, problem=f"counts other images: n {counted}; publish it again")
    elsewhere = _machine_differences(published, built, there, here)
    notes = [f"is compared within the allowance, since {', '.join(elsewhere)}"] if elsewhere else []
    if codes := _changed_codes(published, built):
        notes.append(f"was built by other code: {', '.join(codes)}")
    lines = [*_facts(published, built), *_counts(published, built, exact=not elsewhere)]
    if not elsewhere:
        lines += _digests(published, built)
    return RowComparison(built.row, tuple(lines), tuple(notes))


def _machine_differences(
    published: Record, built: Record, there: Mapping[str, str] | None, here: Mapping[str, str]
) -> list[str]:
    """In what the two were not built alike; empty where the same bytes are due."""
    if there is None:
        return ["it is not known which machine published it"]
    before, now = {**published.environment, **there}, {**built.environment, **here}
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    return [f"{name} was {before.get(name, 'unknown')} and is {now.get(name, 'unknown')}" for name in names]


def _changed_codes(published: Record, built: Record) -> list[str]:
    """The stages whose code has another digest, which any edit changes."""
    return [
        name.removeprefix("code ")
        for name in sorted(published.sha256.keys() | built.sha256.keys())
        if name.startswith("code ") and published.sha256.get(name) != built.sha256.get(name)
    ]


def _facts(published: Record, built: Record) -> list[Line]:
    """What depends on no machine."""
    named: list[tuple[str, object, object]] = [
        ("division", published.division, built.division),
        ("trust", published.trust, built.trust),
        ("seed", published.seed, built.seed),
        ("parameters", published.parameters, built.parameters),
        ("FLOPs", published.flops, built.flops),
    ]
    if published.settings != built.settings:
        named.append(("settings", "as published", "others"))
    lines = [Line(what, str(one), str(other), "same" if one == other else "OUTSIDE") for what, one, other in named]
    specs = [{attack.id: (attack.spec, attack.engine) for attack in record.attacks} for record in (published, built)]
    lines += [
        Line(f"{name}: parameters", "as published", "others", "OUTSIDE")
        for name in specs[0]
        if name in specs[1] and specs[0][name] != specs[1][name]
    ]
    return lines + _same_digests(published, built, lambda name: name.startswith("data "))


def _digests(published: Record, built: Record) -> list[Line]:
    """Weights, evidence and adversarial images."""
    return _same_digests(published, built, lambda name: not name.startswith(("data ", "code ")))


def _same_digests(published: Record, built: Record, chosen: Callable[[str], bool]) -> list[Line]:
    lines = []
    for name in sorted(filter(chosen, published.sha256.keys() | built.sha256.keys())):
        one, other = (record.sha256.get(name, "none") for record in (published, built))
        lines.append(Line(f"sha256 of {name}", one[:12], other[:12], "same" if one == other else "OUTSIDE"))
    return lines


def _counts(published: Record, built: Record, *, exact: bool) -> list[Line]:
    """Every number of images; one that either Record lacks is outside."""
    same_weights = published.sha256["weights"] == built.sha256["weights"]
    before, now = (counts(record) | (_parts(record) if exact else {}) for record in (published, built))
    lines = []
    for name in [*before, *(name for name in now if name not in before)]:
        if name not in before or name not in now:
            words = [f"{c[name][0]} of {c[name][1]}" if name in c else "none" for c in (before, now)]
            lines.append(Line(name, words[0], words[1], "OUTSIDE"))
            continue
        (one, n), (other, m) = before[name], now[name]
        allowed = 0 if exact else n // built.n if same_weights else math.ceil(SHARE * n)
        difference = abs(one - other)
        verdict: Verdict = "OUTSIDE" if difference > allowed or n != m else "within" if difference else "same"
        lines.append(Line(name, f"{one} of {n}", f"{other} of {m}", verdict, difference, allowed))
    return lines


def counts(record: Record) -> dict[str, tuple[int, int]]:
    """(images that hold, images counted) by name: the headline numbers, each attack's, and those beside them.

    An image's corrupted copies are counted one by one.
    """
    found: dict[str, Proportion] = headline(record)
    numbers = {name: (p.count, p.n) for name, p in found.items()}
    for attack in record.attacks:
        numbers[attack.id] = attack.accuracy.count, attack.accuracy.n
    if record.smoothed:
        numbers["smoothed clean"] = record.smoothed.clean.count, record.smoothed.clean.n
    for one in record.corrupted.corruptions if record.corrupted else ():
        numbers[f"corrupted: {one.name}"] = one.mean.count, one.mean.n
    return numbers


def _parts(record: Record) -> dict[str, tuple[int, int]]:
    """The same of what each attack's components left: where attacks stop on the way depends on rounding."""
    return {
        f"{attack.id} after {part}": (left, attack.accuracy.n)
        for attack in record.attacks
        for part, left in attack.remaining.items()
    }
