"""What differs between two sets of Records: rows, their numbers, and the images whose verdict flipped. Pure.

`regression.py` says whether a difference is allowed; here it is only shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from benchmark.results.record import Record
from benchmark.results.regression import counts
from benchmark.specs.base import Frozen

Kind = Literal["new", "removed", "changed", "same"]
Verdicts = Mapping[str, np.ndarray]  # (n,) bool, whether an image counts, by the number's name as in `counts`


class NumberDifference(Frozen):
    """One number of a row: (images that count, images) before and after; None where it is not there.

    `lost` and `gained` are the images that counted before or after alone; None where either side has no evidence by image.
    """

    name: str
    before: tuple[int, int] | None
    after: tuple[int, int] | None
    lost: tuple[int, ...] | None = None
    gained: tuple[int, ...] | None = None

    @property
    def moved(self) -> bool:
        return self.before != self.after or bool(self.lost or self.gained)


class RowDifference(Frozen):
    """One row: its `numbers`, and `facts` that differ besides, such as the weights' sha256 (what, before, after).

    `of` says whence the later Record is: built in work/, published in leaderboard/results/, or "" where there is none.
    """

    track: str
    row: str
    kind: Kind
    of: Literal["built", "published", ""] = ""
    numbers: tuple[NumberDifference, ...] = ()
    facts: tuple[tuple[str, str, str], ...] = ()

    @property
    def moved(self) -> tuple[NumberDifference, ...]:
        return tuple(number for number in self.numbers if number.moved)

    @property
    def breaks(self) -> bool:
        """Whether what was published no longer stands: a new row and other bytes of the same verdicts are no break."""
        return self.kind == "removed" or (self.kind == "changed" and bool(self.moved))


class Difference(Frozen):
    """All rows that the base or this side has, in order of tracks and rows."""

    base: str  # the commit
    rows: tuple[RowDifference, ...]

    @property
    def changed(self) -> tuple[RowDifference, ...]:
        return tuple(row for row in self.rows if row.kind != "same")


def compare(
    before: Record | None, after: Record | None, was: Verdicts | None = None, now: Verdicts | None = None
) -> RowDifference:
    """One row, at the base and now; at least one of the two is there.

    Args:
        was, now: verdicts by image of `before` and `after`, where there is evidence of them.
    """
    either = after or before
    assert either is not None
    numbers = _numbers(counts(before) if before else {}, counts(after) if after else {}, was, now)
    facts = _facts(before, after) if before and after else ()
    kind: Kind = "new" if before is None else "removed" if after is None else "same"
    if kind == "same" and (facts or any(number.moved for number in numbers)):
        kind = "changed"
    return RowDifference(track=either.track, row=either.row, kind=kind, numbers=numbers, facts=facts)


def _numbers(
    before: Mapping[str, tuple[int, int]],
    after: Mapping[str, tuple[int, int]],
    was: Verdicts | None,
    now: Verdicts | None,
) -> tuple[NumberDifference, ...]:
    found = []
    for name in [*before, *(name for name in after if name not in before)]:
        lost = gained = None
        if was and now and name in was and name in now and len(was[name]) == len(now[name]):
            lost = tuple(int(i) for i in np.flatnonzero(was[name] & ~now[name]))
            gained = tuple(int(i) for i in np.flatnonzero(~was[name] & now[name]))
        found.append(
            NumberDifference(name=name, before=before.get(name), after=after.get(name), lost=lost, gained=gained)
        )
    return tuple(found)


def _facts(before: Record, after: Record) -> tuple[tuple[str, str, str], ...]:
    named: list[tuple[str, object, object]] = [
        ("track version", before.track_version, after.track_version),
        ("division", before.division, after.division),
        ("trust", before.trust, after.trust),
        ("parameters", before.parameters, after.parameters),
        ("settings", "as before", "as before" if before.settings == after.settings else "others"),
    ]
    named += [
        (f"sha256 of {name}", before.sha256.get(name, "none")[:12], after.sha256.get(name, "none")[:12])
        for name in sorted(before.sha256.keys() | after.sha256.keys())
        if not name.startswith("code ")  # any edit changes it
    ]
    return tuple((what, str(one), str(other)) for what, one, other in named if one != other)
