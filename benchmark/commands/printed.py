"""Tables for the terminal that take more than a line or two."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from benchmark.results.study import PublishedStudy

if TYPE_CHECKING:
    from benchmark.commands.compare_engines import Comparison


def print_comparison(console: Console, found: Comparison, title: str) -> None:
    """Both engines, part by part, then each image on which they differ."""
    reference, fast = found.runs["reference"], found.runs["fast"]
    table = Table("after", "robust: reference", "fast", "seconds: reference", "fast", "ratio", title=title)
    for name in fast.seconds:
        times = reference.seconds[name], fast.seconds[name]
        counts = f"{reference.remaining[name]}", f"{fast.remaining[name]}"
        table.add_row(name, *counts, *(f"{t:.2f}" for t in times), _ratio(*times))
    total = sum(reference.seconds.values()), sum(fast.seconds.values())
    counts = f"{int(reference.robust.sum())}", f"{int(fast.robust.sum())}"
    table.add_row("all", *counts, *(f"{t:.2f}" for t in total), _ratio(*total))
    console.print(table)
    n, differing = len(found.clean), found.disagreements
    console.print(
        f"the same verdict on {n - len(differing)} of {n} images ({int((found.clean > 0).sum())} right when clean)"
    )
    for d in differing:
        console.print(
            f"image {d.image}: only the {d.engine} engine breaks it, with {d.component}: "
            f"margin {d.margin:.3g} there, {d.clean_margin:.3g} clean"
        )


def _ratio(reference: float, fast: float) -> str:
    return f"{reference / fast:.2f}" if min(reference, fast) > 0.005 else ""  # not of nothing


def print_study(console: Console, published: PublishedStudy) -> None:
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
