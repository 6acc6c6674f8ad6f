"""The result of `rvb verify`: a Record compared with the bytes that it was computed from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
from pydantic import BaseModel

from benchmark.records.record import Record, TrustTier
from benchmark.specs.base import Frozen

Source = Literal["built", "published", "built and published"]


class Checked(Frozen):
    """A kind of check that was made: `count` of `what`."""

    what: str
    count: int


class Contradiction(Frozen):
    """A value of the Record that the bytes contradict: what is `recorded`, and what was `found` by the check.

    `image` is the place among the evaluation images; None where it is about no single image. `recorded` and `found` are empty
    where `what` says it all.
    """

    row: str
    what: str
    recorded: str = ""
    found: str = ""
    image: int | None = None

    @property
    def line(self) -> str:
        place = "" if self.image is None else f"image {self.image}: "
        values = f": recorded {self.recorded}, found {self.found}" if self.recorded or self.found else ""
        return f"{self.row}: {place}{self.what}{values}"


class Verification(BaseModel):
    """The verification of a Record, filled by the checks.

    Attributes:
        of: whether it is the Record in work/, the one in leaderboard/results/, or both, where they agree.
        trust: the tier that the Record claims.
        tier: the tier that these checks amount to: `replayed` where every stored image was evaluated again and a sample of
            the certificates made again, else `claimed`.
        unchecked: what could not be checked, each with the reason.
    """

    track: str
    row: str
    of: Source
    trust: TrustTier
    tier: TrustTier = "claimed"
    checked: list[Checked] = []
    unchecked: list[str] = []
    contradictions: list[Contradiction] = []

    @classmethod
    def begin(cls, record: Record, of: Source) -> Verification:
        """Return the verification of a Record before any check."""
        return cls(track=record.track, row=record.row, of=of, trust=record.trust)

    @property
    def own(self) -> bool:
        """Whether the files in work/ have to be the Record's own."""
        return self.of != "published"

    @property
    def holds(self) -> bool:
        """Whether everything that could be checked is as recorded."""
        return not self.contradictions

    def check(self, what: str, count: int) -> None:
        self.checked.append(Checked(what=what, count=count))

    def contradict(self, what: str, recorded: object = "", found: object = "", image: int | None = None) -> None:
        """Add a contradiction: what differs, the recorded value, the value computed again, and the image if there is one."""
        values = {"recorded": shown(recorded), "found": shown(found)}
        self.contradictions.append(Contradiction(row=self.row, what=what, image=image, **values))

    def compare(self, what: str, recorded: np.ndarray, found: np.ndarray, differ: np.ndarray | None = None) -> None:
        """Compare values of all images, (n,) each. Add a contradiction for each that differs, or that `differ` marks."""
        where = (recorded != found) if differ is None else differ  # NaN is never equal
        for image in np.flatnonzero(where).tolist():
            self.contradict(what, recorded[image], found[image], image)


def shown(value: object) -> str:
    """Return a value with all its digits."""
    if isinstance(value, np.floating):
        return f"{value:.9g}" if value.dtype == np.float32 else f"{value:.17g}"
    return str(value)


def some(images: Iterable[int], most: int = 10) -> str:
    """Return the numbers of images as text: the first `most`, and how many more there are."""
    every = list(images)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(map(str, every[:most])) + more
