"""The report of `rvb check` on a submission."""

from __future__ import annotations

from benchmark.specs.base import Frozen


class Check(Frozen):
    """One check. `row` and `track` are empty for the whole submission; `found` says what to do where it failed."""

    name: str
    ok: bool
    found: str
    row: str = ""
    track: str = ""


class Note(Frozen):
    """Something for a maintainer to look at; no failure."""

    name: str
    found: str
    row: str = ""
    track: str = ""


class CheckReport(Frozen):
    """All checks of a submission, in order, and notes for maintainers."""

    submission: str
    checks: tuple[Check, ...]
    notes: tuple[Note, ...]

    @property
    def failed(self) -> list[Check]:
        return [check for check in self.checks if not check.ok]
