"""`rvb regress`: what was built held against what is published."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from benchmark.commands import baselines
from benchmark.commands.publish import all_rows, default_rows
from benchmark.commands.terminal import TrackOption, console
from benchmark.runtime.errors import BenchmarkError, near_miss

if TYPE_CHECKING:
    from benchmark.results.regression import RowComparison


def regress(
    rows: Annotated[list[str] | None, typer.Argument(help="<submission>-<variant> (default: every row).")] = None,
    track: TrackOption = "digits",
    published: Annotated[
        bool, typer.Option("--published", help="Check what is published for itself; nothing needs to be built.")
    ] = False,
) -> None:
    """Compare the rows just built with their published Records; exit status 1 if one differs more than is allowed."""
    from benchmark.loading import tracks
    from benchmark.results.headline import headline_names
    from benchmark.results.regression import RULE, compare_rows

    if published:
        for name in tracks.names():
            _check(name, baselines.published_rows(name))
        return
    default = default_rows(track)
    known = sorted({*default, *all_rows(track), *baselines.published_rows(track)})
    for row in rows or ():
        if row not in known:
            raise BenchmarkError(f"{track} has no row {row!r}{near_miss(row, known)}")
    chosen = rows or known
    _check(track, chosen)
    before = {row: one for row in chosen if (one := baselines.published_row(track, row))}
    built = {row: one for row in chosen if (one := baselines.built_row(track, row))}
    if not built and not rows:
        raise BenchmarkError(f"nothing is built here to compare; run `rvb repro --track {track}` first")
    found = compare_rows(before, built, rows or default)
    console.print(f"Rule: {RULE}.")
    headline = {*headline_names(tracks.load(track))}
    for comparison in found:
        _print_row(comparison, headline)
    failed = [one.row for one in found if one.failed]
    if failed:
        raise BenchmarkError(
            f"{len(failed)} of {len(found)} rows are not what was published: {', '.join(failed)}; "
            "find out why, or publish them anew with --reason"
        )
    console.print(f"{len(found)} row{'s are' if len(found) > 1 else ' is'} what was published")


def _check(track: str, rows: list[str]) -> None:
    if faults := baselines.faults(track, rows):
        raise BenchmarkError(faults[0] + (f" (and {len(faults) - 1} faults more)" if faults[1:] else ""))


def _print_row(one: RowComparison, headline: set[str]) -> None:
    """A line for every headline number and whatever differs, then what is to be said of the row as a whole."""
    if one.lines:
        table = Table("metric", "published", "built", "images changed", "p", "verdict", title=one.row)
        for line in one.lines:
            if line.metric in headline or line.verdict != "same":
                changed = "" if line.changed is None else str(line.changed)
                p = "" if line.p is None else f"{line.p:.2g}"
                table.add_row(line.metric, line.published, line.built, changed, p, line.verdict)
        console.print(table)
        same = sum(line.verdict == "same" for line in one.lines)
        console.print(f"{one.row}: {same} of {len(one.lines)} numbers and facts are as published")
    for words in (*one.notes, *([one.problem] if one.problem else [])):
        console.print(f"{one.row} {words}")
