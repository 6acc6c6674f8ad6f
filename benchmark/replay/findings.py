"""What a verification collects while it runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from benchmark.results.verification import Checked, Contradiction


@dataclass
class Findings:
    """Checks made, what could not be checked, and contradictions, of one row."""

    row: str
    checked: list[Checked] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    contradictions: list[Contradiction] = field(default_factory=list)

    def check(self, what: str, count: int) -> None:
        self.checked.append(Checked(what=what, count=count))

    def contradict(self, what: str, recorded: object = "", found: object = "", image: int | None = None) -> None:
        """`what` says it all where there are no two values."""
        self.contradictions.append(
            Contradiction(row=self.row, what=what, recorded=shown(recorded), found=shown(found), image=image)
        )

    def compare(self, what: str, recorded: np.ndarray, found: np.ndarray, differ: np.ndarray | None = None) -> None:
        """Values of every image, (n,) each: a contradiction for each that differs, or that `differ` names."""
        where = (recorded != found) if differ is None else differ  # NaN is never equal
        for image in np.flatnonzero(where).tolist():
            self.contradict(what, recorded[image], found[image], image)


def shown(value: object) -> str:
    """A value with all its digits."""
    if isinstance(value, np.floating):
        return f"{value:.9g}" if value.dtype == np.float32 else f"{value:.17g}"
    return str(value)


def some(images: Iterable[int], most: int = 10) -> str:
    """Images by their places; the first of many."""
    every = list(images)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(map(str, every[:most])) + more
