"""`rvb check`: whether a submission keeps to the harness's interface. No DVC stage; it writes nothing and trains nothing."""

from __future__ import annotations

import warnings
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from benchmark.commands.terminal import console

if TYPE_CHECKING:
    from benchmark.results.check import CheckReport


def check(
    name: Annotated[str, typer.Argument(help="<submission>, or one of its rows, <submission>-<variant>.")],
    as_json: Annotated[bool, typer.Option("--json", help="All that was found, as JSON.")] = False,
) -> None:
    """Try a submission in at most a minute; exit status 1 if a check fails."""
    warnings.simplefilter("ignore", FutureWarning)  # torch's, of its own modules
    from benchmark.loading.run_settings import run_settings
    from benchmark.reliability.submission import check_submission
    from benchmark.runtime.torch_setup import set_up
    from benchmark.specs.base import to_json

    submission, _, variant = name.partition("-")
    report = check_submission(submission, variant, device=set_up(run_settings().evaluate.device))
    if as_json:
        typer.echo(to_json(report), nl=False)
    else:
        _print(report)
    if report.failed:
        raise typer.Exit(1)


def _print(report: CheckReport) -> None:
    """A line a check, by row; then what a maintainer would look at."""
    for place, checks in groupby(report.checks, lambda one: (one.row, one.track)):
        console.print(" on ".join(place) if place[0] else report.submission, style="bold")
        for one in checks:
            verdict = "ok  " if one.ok else "FAIL"
            console.print(f"  {verdict}  {one.name}: {one.found}", markup=False)
    if report.notes:
        console.print("what a maintainer would look at", style="bold")
    for place, notes in groupby(report.notes, lambda one: (one.row, one.track)):
        for note in notes:
            where = f"{place[0]} on {place[1]}: " if place[0] else ""
            console.print(f"  {where}{note.name}: {note.found}", markup=False)
    count = len(report.checks)
    words = f"{len(report.failed)} of {count} checks failed" if report.failed else f"all {count} checks passed"
    console.print(f"{report.submission}: {words}")
