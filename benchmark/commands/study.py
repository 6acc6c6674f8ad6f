"""`rvb study`: a paper's table or figure. torch is imported by the calls that need it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from benchmark.commands.terminal import console
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import WORK

if TYPE_CHECKING:
    from benchmark.results.study import PublishedStudy


def study(
    submission: Annotated[str, typer.Argument(help="<submission>")] = "",
    name: Annotated[str, typer.Argument(help="One of its studies.")] = "",
    stale: Annotated[bool, typer.Option("--stale", help="List published studies that are not today's.")] = False,
) -> None:
    """Do a paper's table or figure again: train and measure what is not done yet, then print it."""
    if stale and submission:
        raise BenchmarkError("--stale lists the published studies of all submissions; leave out the other arguments")
    if stale:
        _list_stale()
        return
    if not name:
        raise BenchmarkError("name a submission and one of its studies; `rvb list` shows them")
    from benchmark.pipeline.repro import repro_study
    from benchmark.studies.published import collect_study

    print_study(collect_study(repro_study(submission, name, console.print)))


def _list_stale() -> None:
    """A line for each published study that is not today's: why, and the commands that make it so."""
    from benchmark.loading import tracks
    from benchmark.studies import grids
    from benchmark.studies.ages import ages

    found = {track: ages(track) for track in tracks.names()}
    unknown = [track for track, studies in found.items() if studies and not (WORK / track / "data").exists()]
    if unknown:
        console.print(f"data not prepared here, so not compared: {', '.join(unknown)}")
    stale = {study: why for studies in found.values() for study, why in studies.items() if why}
    for study, why in stale.items():
        submission, _, name = study.partition("-")
        again = f"`rvb study {submission} {name}`, then `rvb publish {submission} --study {name}`"
        if not grids.path(submission, name).exists():
            again = "`git rm` what is published of it"
        console.print(f"{submission} {name}: {'; '.join(why)}: {again}")
    if not stale:
        console.print(f"all {sum(map(len, found.values()))} published studies are today's")


def print_study(published: PublishedStudy) -> None:
    """Each setting's mean and range over seeds, curves in tables of their own, then what the differences show."""
    from benchmark.results.study_sheets import sheets
    from benchmark.results.study_table import table

    found, study = table(published), published.study
    title = f"{study.title} ({study.source})"
    if found.flat:
        shown = Table("setting", *(found.columns[i].title for i in found.flat), title=title)
        for line in found.lines:
            numbers = [(found.columns[i], line.entries[i]) for i in found.flat]
            shown.add_row(line.cell, *(f"{c.text(e.mean)} ({c.text(e.low)} to {c.text(e.high)})" for c, e in numbers))
        console.print(shown)
    for sheet in sheets(found):
        shown = Table(sheet.title, *sheet.heads, title=title)
        for row in sheet.rows:
            shown.add_row(
                row.name, *(f"{c.text(e.mean)} ({c.text(e.low)} to {c.text(e.high)})" for c, e in row.entries)
            )
        console.print(shown)
    for label, why in published.result.left_out.items():
        console.print(f"left out: {label}; {why}")
    console.print("\n".join(found.words))
