"""`rvb board` prints a track's Records as one table; `rvb site` renders the whole site."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmark.commands import baselines
from benchmark.commands.terminal import TrackOption, console
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import PUBLISHED

if TYPE_CHECKING:
    from benchmark.results.record import Record

SHOWN = ("clean", "robust", "certified")  # what ranks; smoothed versions are other classifiers


def site(
    address: Annotated[str, typer.Option(help="Where it will be published; the site map needs it.")] = "",
    repository: Annotated[str, typer.Option(help="The address of the source, which each page then links.")] = "",
) -> None:
    """Render the front page and every track's board, model, paper and compare pages, in work/site.

    Of rows that are built here, and of the published ones.
    """
    from benchmark.pipeline import inputs

    for track in baselines.published_tracks():
        inputs.write_papers(track)
    done = subprocess.run([sys.executable, "-m", "leaderboard.front", "--address", address, "--repository", repository])
    if done.returncode:
        raise typer.Exit(done.returncode)


def board(
    track: TrackOption = "digits",
    published: Annotated[
        bool, typer.Option("--published", help="Those in leaderboard/results, whatever is built.")
    ] = False,
) -> None:
    """Print the track's rows in one table: clean, robust and certified accuracy.

    Of the Records built here; of the published ones where none is.
    """
    from benchmark.loading import tracks
    from benchmark.loading.rows import load_rows
    from benchmark.results.headline import headline, headline_names
    from benchmark.results.record import Record

    rules, folder = tracks.load(track), PUBLISHED / track
    records_here = {row.name: row.folder / "record" / "record.json" for row in load_rows(track)}
    built = {name: path for name, path in records_here.items() if path.exists()}
    if published or not built:
        paths = {path.stem: path for path in sorted(folder.glob("*-*.json"))}
        where, again = f"published in {folder}", "bring it back with git, or publish it again"
    else:
        paths, where, again = built, f"built here, in {built[min(built)].parents[2]}", "delete it and run `rvb repro`"
    if not paths:
        raise BenchmarkError(f"no row of {track} is built here or published; run `rvb repro --track {track}`")
    images = {row: folder / "images" / path.name for row, path in paths.items()}
    images |= {row: path.parent / "per_image.json" for row, path in built.items()} if paths is built else {}
    read = {row: files.read_model(path, Record, again) for row, path in paths.items()}
    counted_rows = [baselines.counted(track, record, images[row]) for row, record in read.items()]
    records, lowered = [record for record, _ in counted_rows], [f"{r.row} ({by})" for r, by in counted_rows if by]
    names = [name for name in headline_names(rules) if name.startswith(SHOWN)]
    numbers = {record.row: headline(record) for record in records}
    key = next((name for name in names if name.startswith("robust")), "clean")
    records.sort(key=lambda record: (-numbers[record.row][key].value, record.row))
    wide = None if console.is_terminal else 200  # a file has no width that a name would have to be folded to
    Console(highlight=False, width=wide).print(_table(records, names, f"{rules.title}: {where}"))
    shown = [p for found in numbers.values() for name, p in found.items() if name in names]
    reach = max(100 * max(p.high - p.value, p.value - p.low) for p in shown)
    counted = " or ".join(str(n) for n in sorted({p.n for p in shown}))
    console.print(f"Percent of {counted} test images; 95% intervals reach up to {reach:.1f} points to either side.")
    if lowered:
        console.print(f"Lowered by adversarial images that others brought: {', '.join(lowered)}", markup=False)
    if missing := [name for name in records_here if name not in paths]:
        others = " (`rvb board --published` shows the published ones)" if paths is built else ""
        console.print(f"Not {'published' if paths is not built else 'built here'}: {', '.join(missing)}{others}")


def _table(records: list[Record], names: list[str], title: str) -> Table:
    """A line a Record; a dash where it has no such number."""
    from benchmark.results.headline import headline

    table = Table(title=title, title_justify="left")
    table.add_column("row", overflow="fold")  # in a narrow terminal; numbers stay whole
    for name in names:
        table.add_column(name.replace(" ", "\n"), justify="right", no_wrap=True)
    for record in records:
        numbers = headline(record)
        table.add_row(record.row, *(f"{100 * numbers[name].value:.1f}" if name in numbers else "–" for name in names))
    return table
