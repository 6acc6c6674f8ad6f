"""A paper's statement, tested by a study."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field

from benchmark.specs.base import Frozen

Verdict = Literal["holds", "opposite", "not shown"]


class Finding(Frozen):
    """`estimate` is positive where the statement is true; `low` to `high` is its 95% interval.

    Attributes:
        statement: as the paper has it, in one sentence.
        statistic: the name of `estimate`, with its unit.
        over: what was drawn: images, seeds or models, and how many.
    """

    statement: str
    statistic: str
    over: str
    estimate: float = Field(allow_inf_nan=False)
    low: float = Field(allow_inf_nan=False)
    high: float = Field(allow_inf_nan=False)

    @property
    def verdict(self) -> Verdict:
        """`holds` where the whole interval is above 0, `opposite` where it is below, `not shown` where it has 0 in it."""
        return "holds" if self.low > 0 else "opposite" if self.high < 0 else "not shown"

    @classmethod
    def of(cls, statement: str, statistic: str, over: str, interval: tuple[float, float, float]) -> Self:
        """From (estimate, low, high)."""
        estimate, low, high = interval
        return cls(statement=statement, statistic=statistic, over=over, estimate=estimate, low=low, high=high)
