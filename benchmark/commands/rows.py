"""Rows as tables: `rvb list`, `rvb board`, `rvb show`; `rvb site`; and `rvb import-robustbench`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmark.commands import baselines
from benchmark.commands.terminal import RowArgument, TrackOption, console, track_names
from benchmark.pipeline import inputs
from benchmark.records import robustbench
from benchmark.records.record import headline, headline_names, order
from benchmark.runtime import files, paths
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import PUBLISHED, WORK, published_files
from benchmark.specs import tracks
from benchmark.specs.base import to_json
from benchmark.specs.rows import NO_ROWS, load_row, load_rows
from benchmark.specs.seeds import variant_of
from benchmark.studies import grids

SHOWN = ("clean", "robust", "certified")  # numbers that rank; smoothed versions are other classifiers


def list_rows(track: Annotated[str, typer.Option(help="This one alone.", autocompletion=track_names)] = "") -> None:
    """List tracks, their rows and studies: what is built here, what is published. `dvc status` says what is stale."""
    loaded = grids.load_all()
    for name in [tracks.load(track).name] if track else tracks.names():
        rows, rules = load_rows(name), tracks.load(name)
        console.print(f"[bold]{name}[/]  {rules.title} (version {rules.version})")
        for row in rows:
            left_out = "" if row.default else "; only built with `--all`"
            title = row.submission.variants[row.variant].title
            built = "built here" if (row.folder / "record" / "record.json").exists() else "not built here"
            also = "; published" if (PUBLISHED / name / f"{row.name}.json").exists() else ""
            console.print(f"  {row.name}  {title}{left_out}; {built}{also}")
        if not rows:
            console.print("  no submission yet")
        published = {path.stem for path in published_files(name)}
        for grid in [grid for grid in loaded if grid.track.name == name]:
            if variant_of(grid.name) and grid.id not in published:
                continue  # every row has one: see the last line
            also = "; published" if grid.id in published else ""
            console.print(f"  {grid.command.removeprefix('rvb ')}  {grid.study.title} ({grid.study.source}){also}")
        if grids.trained_rows(name):
            console.print("  study <row> seeds  any row that is trained here, with five seeds", highlight=False)


def board(
    track: TrackOption = "digits",
    published: Annotated[bool, typer.Option("--published", help="Those in leaderboard/results, whatever is built.")] = False,
) -> None:
    """Print the track's rows in one table: clean, robust and certified accuracy.

    The Records that were built here are shown; if there is none, the published ones.
    """
    rules, declared = tracks.load(track), {row.name: row.default for row in load_rows(track)}
    built = {} if published else {row: made for row in declared if (made := baselines.built_numbers(track, row))}
    rows = built or baselines.published(track)
    if not rows:
        every = "" if any(declared.values()) else " --all"
        words = f"no row of {track} is built here or published; run `rvb repro --track {track}{every}`"
        raise BenchmarkError(words if declared else NO_ROWS.format(track))
    where = f"built here, in {WORK / track}" if built else f"published in {PUBLISHED / track}"
    counted = {row: baselines.counted(track, made) for row, made in rows.items()}
    numbers = {row: headline(record) for row, (record, _) in counted.items()}
    names = [name for name in headline_names(rules) if name.startswith(SHOWN)]
    table = Table(title=f"{rules.title}: {where}", title_justify="left")
    table.add_column("row", overflow="fold")  # in a narrow terminal; numbers stay whole
    for name in names:
        table.add_column(name.replace(" ", "\n"), justify="right", no_wrap=True)
    for row, shares in sorted(numbers.items(), key=lambda item: order(item[1], names, item[0])):
        table.add_row(row, *(f"{100 * shares[name].value:.1f}" if name in shares else "–" for name in names))
    wide = None if console.is_terminal else 200  # names are folded to a terminal alone
    Console(highlight=False, width=wide).print(table)
    shown = [share for shares in numbers.values() for name, share in shares.items() if name in names]
    reach = max(100 * max(p.high - p.value, p.value - p.low) for p in shown)
    images = " or ".join(str(n) for n in sorted({p.n for p in shown}))
    console.print(f"Percent of {images} test images; 95% intervals reach up to {reach:.1f} points to either side.")
    if lowered := [f"{row} ({credit})" for row, (_, credit) in counted.items() if credit]:
        console.print(f"Lowered by adversarial images that others contributed: {', '.join(lowered)}", markup=False)
    if missing := [name for name in declared if name not in rows]:
        others = " (`rvb board --published` shows the published ones)" if built else ""
        console.print(f"Not {'built here' if built else 'published'}: {', '.join(missing)}{others}")


def show(row: RowArgument, track: TrackOption = "digits") -> None:
    """Print the numbers of one row: as it was built here, or else as it is published."""
    built = baselines.built_numbers(track, load_row(track, row).name, bare=True)
    made = built or baselines.published_row(track, row)
    if made is None:
        raise BenchmarkError(f"{row} is neither built here nor published on {track}; run `rvb repro {row} --track {track}`")
    record, credit = baselines.counted(track, made)
    where = "built here" if built else f"published in {PUBLISHED / track}"
    table = Table("number", "percent", "95% interval", "images", title=f"{record.title} on {track}, {where}")
    for name, p in headline(record).items():
        table.add_row(name, f"{100 * p.value:.1f}", f"{100 * p.low:.1f}–{100 * p.high:.1f}", f"{p.count} of {p.n}")
    console.print(table)
    if credit:
        console.print(f"lowered by adversarial images that others contributed: {credit}", markup=False)
    warnings = [f"{attack.id}: {warning}" for attack in record.attacks for warning in attack.warnings]
    if record.training and record.training.overfitting and record.training.overfitting.found:
        warnings.append(f"training: {record.training.overfitting.words}")
    for indicator in record.reliability.failing if record.reliability else ():
        warnings.append(f'"{indicator.name}" fails: {indicator.measured}. {indicator.explanation}')
    for warning in warnings:
        console.print(f"warning: {warning}")


def site(
    address: Annotated[str, typer.Option(help="Where it will be published; the site map needs it.")] = "",
    repository: Annotated[str, typer.Option(help="The address of the source, which each page then links.")] = "",
) -> None:
    """Render the front page and every track's board, model, paper and compare pages, in work/site.

    They show the rows that are built here, and the published ones.
    """
    for track in baselines.published_tracks():
        inputs.write_papers(track)
    done = subprocess.run([sys.executable, "-m", "leaderboard.front", "--address", address, "--repository", repository])
    if done.returncode:
        raise typer.Exit(done.returncode)


def import_robustbench(
    folder: Annotated[Path, typer.Argument(help="RobustBench's model_info, as a clone of it has it.")],
    track: TrackOption = "digits",
) -> None:
    """Show RobustBench's published rows beside a track's, as claimed: those of its data set and radii."""
    board, left_out = robustbench.read_board(paths.as_typed(folder), tracks.load(track))
    for line in left_out:
        console.print(f"left out: {line}")
    path = robustbench.CLAIMED / track / "robustbench.json"
    files.write(path, to_json(board))
    console.print(f"wrote {path}: {len(board.rows)} rows, {len(left_out)} left out; run `rvb repro`, commit it")
