"""What `rvb verify` found: a Record held against the bytes that it rests on."""

from __future__ import annotations

from typing import Literal

from benchmark.results.record import TrustTier
from benchmark.specs.base import Frozen

Source = Literal["built", "published", "built and published"]


class Checked(Frozen):
    """One kind of check that was made: `count` of `what`."""

    what: str
    count: int


class Contradiction(Frozen):
    """Something that the bytes do not bear out: what is `recorded`, and what was `found` when it was looked at again.

    `image` is its place among the evaluation images; None where it is of none of them. Where `recorded` and `found` are
    empty, `what` says it all.
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


class Verification(Frozen):
    """One Record.

    Attributes:
        of: whether it is the Record in work/, the one in leaderboard/results/, or both, which say the same.
        trust: the tier that the Record claims.
        tier: the tier that these checks amount to: `replayed` where every stored image was judged again and a sample of the
            certificates made again, else `claimed`.
        unchecked: what could not be checked, in words, each with the reason.
    """

    track: str
    row: str
    of: Source
    trust: TrustTier
    tier: TrustTier
    checked: tuple[Checked, ...]
    unchecked: tuple[str, ...]
    contradictions: tuple[Contradiction, ...]

    @property
    def holds(self) -> bool:
        """Whether all that could be checked is as recorded."""
        return not self.contradictions
