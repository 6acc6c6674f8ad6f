"""What differs between two sets of rows: their numbers, and the images whose verdict flipped. Pure.

`regression.py` says whether a difference is allowed; here it is only shown.
"""

from __future__ import annotations

from typing import Literal

from benchmark.results import comparison
from benchmark.results.per_image import PerImage, counts
from benchmark.results.record import Record
from benchmark.specs.base import Frozen

Kind = Literal["new", "removed", "changed", "same"]


class NumberDifference(Frozen):
    """One number of a row: (images that count, images) before and after; None where it is not there.

    `lost` and `gained` are the images that count less or more than before; None where either side has no numbers by image.
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
    before: Record | None, after: Record | None, was: PerImage | None = None, now: PerImage | None = None
) -> RowDifference:
    """One row, at the base and now; at least one of the two is there.

    Args:
        was, now: the numbers of `before` and `after` by image, where they are kept.
    """
    either = after or before
    assert either is not None
    numbers = _numbers(before, after, was, now)
    facts = _facts(before, after) if before and after else ()
    kind: Kind = "new" if before is None else "removed" if after is None else "same"
    if kind == "same" and (facts or any(number.moved for number in numbers)):
        kind = "changed"
    return RowDifference(track=either.track, row=either.row, kind=kind, numbers=numbers, facts=facts)


def _numbers(
    before: Record | None, after: Record | None, was: PerImage | None, now: PerImage | None
) -> tuple[NumberDifference, ...]:
    ours, theirs = (counts(record) if record else {} for record in (before, after))
    found = []
    for name in dict.fromkeys([*ours, *theirs]):
        lost = gained = None
        scores = [images.score(name) if images else None for images in (was, now)]
        if scores[0] is not None and scores[1] is not None and len(scores[0]) == len(scores[1]):
            pairs = list(enumerate(zip(*scores, strict=True)))
            lost = tuple(image for image, (one, other) in pairs if other < one)
            gained = tuple(image for image, (one, other) in pairs if other > one)
        found.append(
            NumberDifference(name=name, before=ours.get(name), after=theirs.get(name), lost=lost, gained=gained)
        )
    return tuple(found)


def _facts(before: Record, after: Record) -> tuple[tuple[str, str, str], ...]:
    """What depends on no machine, then other bytes; the code's are left out, since any edit changes them."""
    named = [(line.metric, line.published, line.built) for line in comparison.facts(before, after)]
    named.insert(0, ("track version", str(before.track_version), str(after.track_version)))
    named += [
        (f"sha256 of {name}", before.sha256.get(name, "none")[:12], after.sha256.get(name, "none")[:12])
        for name in sorted(before.sha256.keys() | after.sha256.keys())
        if not name.startswith(("code ", "data "))
    ]
    return tuple((what, one, other) for what, one, other in named if one != other)
