"""`rvb study`: a paper's table or figure. torch is imported by the calls that need it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from benchmark.commands.terminal import console

if TYPE_CHECKING:
    from benchmark.results.study import PublishedStudy


def study(
    submission: Annotated[str, typer.Argument(help="<submission>")],
    name: Annotated[str, typer.Argument(help="One of its studies.")],
) -> None:
    """Do a paper's table or figure again: train and measure what is not done yet, then print it."""
    from benchmark.pipeline.repro import repro_study
    from benchmark.studies.published import collect_study

    print_study(collect_study(repro_study(submission, name, console.print)))


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
