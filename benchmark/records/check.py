"""What `rvb check` found of a submission."""

from __future__ import annotations

from benchmark.specs.base import Frozen


class Check(Frozen):
    """One check. `row` and `track` are empty where it is of the whole submission; `found` says what to do where it failed."""

    name: str
    ok: bool
    found: str
    row: str = ""
    track: str = ""


class Note(Frozen):
    """Something that a maintainer would look at: no failure."""

    name: str
    found: str
    row: str = ""
    track: str = ""


class CheckReport(Frozen):
    """All checks of a submission in the order in which they were made, and what a maintainer would look at."""

    submission: str
    checks: tuple[Check, ...]
    notes: tuple[Note, ...]

    @property
    def failed(self) -> list[Check]:
        return [check for check in self.checks if not check.ok]
