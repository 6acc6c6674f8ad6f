"""`rvb study`: a table or figure of a paper, or a row with other seeds. Only calls that need torch import it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.cells import cell_len
from rich.table import Table

from benchmark.commands.terminal import TrackOption, console, resumable
from benchmark.pipeline import repro
from benchmark.records import reproduced
from benchmark.records.study import PublishedStudy, read_published
from benchmark.runtime import git
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import PUBLISHED
from benchmark.specs import submissions, tracks
from benchmark.specs.seeds import study_name
from benchmark.specs.study import publish_command
from benchmark.studies import grids

if TYPE_CHECKING:
    from benchmark.records.study_table import Column, Entry

UNKNOWN = "–"  # as columns write NaN


def study(
    owner: Annotated[str, typer.Argument(help="<submission>, or <submission>-<variant> with `seeds`")] = "",
    name: Annotated[str, typer.Argument(help="One of its studies; `seeds`: the row's training with five seeds.")] = "",
    track: TrackOption = "digits",
    all_seeds: Annotated[bool, typer.Option("--all-seeds", help="`seeds` of every row of the track.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Train one cell with one seed again and compare it with the published run.")
    ] = False,
    mark: Annotated[bool, typer.Option("--mark", help="With --check: note the commit where the bytes are the same.")] = False,
) -> None:
    """Do a paper's table or figure again, or a row with other seeds: train and measure what is not done, then print it."""
    if all_seeds and (owner or check):
        raise BenchmarkError("--all-seeds stands alone; leave out the other arguments")
    if mark and not check:
        raise BenchmarkError("--mark notes what --check compared; give both")
    if not name and not all_seeds:
        raise BenchmarkError("name a submission and one of its studies; `rvb list` shows them")
    if check:
        _check(owner, name, track, mark)
        return
    from benchmark.studies.results import collect_study

    for study_id in _seeds_of_rows(track) if all_seeds else [f"{owner}-{name}"]:
        grid = grids.load(*grids.split_id(study_id), track)
        with resumable():
            repro.repro_study(grid, console.print)
        print_study(collect_study(grid))


def _seeds_of_rows(track: str) -> list[str]:
    """Return the studies over seeds of a track's rows. Print a line for each row that has none."""
    tracks.load(track)
    trained = grids.trained_rows(track)
    for submission, variant in submissions.rows(track):
        if f"{submission.name}-{variant}" not in trained:
            console.print(f"{submission.name}-{variant}: weights trained elsewhere, so no seeds to vary")
    return [study_name(row) for row in trained]


def _check(owner: str, name: str, track: str, mark: bool) -> None:
    """Compare one retrained run with the published one. Raise a BenchmarkError where they differ."""
    commit = git.clean_commit() if mark else ""
    grid = grids.load(*grids.split_id(f"{owner}-{name}"), track)
    folder = PUBLISHED / grid.track.name
    path = folder / "studies" / f"{grid.id}.json"
    if not path.exists():
        command = publish_command(grid.id, grid.track.name)
        raise BenchmarkError(f"{grid.id} is not published; run `{grid.command}`, then `{command}`")
    (published,) = read_published(path.parent, path.name)
    what, differ = repro.reproduce(grid, published.result)
    if differ:
        raise BenchmarkError(f"{grid.id}: {what} differs from {path} in {', '.join(differ)}")
    console.print(f"{grid.id}: {what} is byte-identical to the published run")
    if mark:
        reproduced.update(folder, {grid.id: what}, commit)
        console.print(f"noted in {folder / reproduced.FILE}; commit it")


def print_study(published: PublishedStudy) -> None:
    """Print each setting's mean and range over seeds, curves in tables of their own, then what the differences show."""
    from benchmark.records.study_points import point_sheets
    from benchmark.records.study_table import sheets, table

    numbers, study = table(published), published.study
    title = f"{study.title} ({study.source})"
    if numbers.flat:
        columns = {i: numbers.columns[i] for i in numbers.flat}
        lines = [(line.cell, *(_text(column, line.entries[i]) for i, column in columns.items())) for line in numbers.lines]
        _print_table(title, ("setting", *(column.title for column in columns.values())), lines)
    for sheet in sheets(numbers):
        lines = [(row.name, *(_text(column, entry) for column, entry in row.entries)) for row in sheet.rows]
        _print_table(title, (sheet.title, *sheet.heads), lines)
    for points in point_sheets(published):
        _print_table(title, (points.title, *points.heads), points.rows)
    for label, why in published.result.left_out.items():
        console.print(f"left out: {label}; {why}")
    console.print("\n".join(numbers.words))
    for finding in published.findings:
        interval = f"{finding.low:+.3g} to {finding.high:+.3g}"
        console.print(f"{finding.verdict}: {finding.statement} ({finding.statistic} {finding.estimate:+.3g}, {interval})")


def _text(column: Column, entry: Entry) -> str:
    mean = column.text(entry.mean)
    return UNKNOWN if mean == UNKNOWN else f"{mean} ({column.text(entry.low)} to {column.text(entry.high)})"


def _print_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, in parts where the console is too narrow. Each part begins with the first column."""
    widths = [max(cell_len(row[i]) for row in (heads, *rows)) + 3 for i in range(len(heads))]
    parts: list[list[int]] = [[]]
    for i in range(1, len(heads)):
        if parts[-1] and 1 + widths[0] + sum(widths[j] for j in parts[-1]) + widths[i] > console.width:
            parts.append([])
        parts[-1].append(i)
    for part in parts:
        shown = Table(*(heads[i] for i in (0, *part)), title=title if part is parts[0] else None)
        for row in rows:
            shown.add_row(*(row[i] for i in (0, *part)))
        console.print(shown)
