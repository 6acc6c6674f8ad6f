"""Commands on rows: `rvb list`, `rvb show`, and `rvb import-robustbench`. torch is imported by the calls that need it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from benchmark.commands.completion import track_names
from benchmark.commands.terminal import RowArgument, TrackOption, console
from benchmark.runtime import files, paths
from benchmark.runtime.paths import PUBLISHED, WORK

if TYPE_CHECKING:
    from benchmark.loading.rows import Row
    from benchmark.results.record import Record


def list_rows(
    track: Annotated[str, typer.Option(help="This one alone.", autocompletion=track_names)] = "",
) -> None:
    """List tracks, their rows and studies: what is built here, what is published. `dvc status` says what is stale."""
    from benchmark.loading import tracks
    from benchmark.loading.rows import load_rows
    from benchmark.specs.seeds import variant_of
    from benchmark.studies import grids
    from benchmark.studies.declared import published_files

    loaded = grids.load_all()
    for name in [tracks.load(track).name] if track else tracks.names():
        rows = load_rows(name)
        console.print(f"[bold]{name}[/]  {tracks.load(name).title} (version {tracks.load(name).version})")
        for row in rows:
            left_out = "" if row.default else "; by `rvb repro --all` alone"
            title = row.submission.variants[row.variant].title
            console.print(f"  {row.name}  {title}{left_out}; {_state(row)}")
        if not rows:
            console.print("  no submission yet")
        published = {path.stem for path in published_files(name)}
        for grid in [grid for grid in loaded if grid.track.name == name]:
            if variant_of(grid.name) and grid.id not in published:
                continue  # every row has one; a line below says so
            also = "; published" if grid.id in published else ""
            console.print(f"  {grid.command.removeprefix('rvb ')}  {grid.study.title} ({grid.study.source}){also}")
        if grids.trained_rows(name):
            console.print("  study <row> seeds  any row that is trained here, with five seeds", highlight=False)


def _state(row: Row) -> str:
    built = "built here" if (row.folder / "record" / "record.json").exists() else "not built here"
    return built + ("; published" if (PUBLISHED / row.track.name / f"{row.name}.json").exists() else "")


def show(row: RowArgument, track: TrackOption = "digits") -> None:
    """Print the numbers of one row."""
    from benchmark.commands import baselines  # which imports this module

    record = built_record(track, row)
    record, credit = baselines.counted(track, record, WORK / track / record.row / "record" / "per_image.json")
    table = Table("number", "percent", "95% interval", "images", title=f"{record.title} on {track}")
    from benchmark.results.headline import headline

    for name, p in headline(record).items():
        table.add_row(name, f"{100 * p.value:.1f}", f"{100 * p.low:.1f}–{100 * p.high:.1f}", f"{p.count} of {p.n}")
    console.print(table)
    if credit:
        console.print(f"lowered by adversarial images that others brought: {credit}", markup=False)
    for attack in record.attacks:
        for warning in attack.warnings:
            console.print(f"warning: {attack.id}: {warning}")
    if record.training and record.training.overfitting and record.training.overfitting.found:
        console.print(f"warning: training: {record.training.overfitting.words}")
    for doubt in record.reliability.failing if record.reliability else ():
        console.print(f'warning: doubt about "{doubt.name}": {doubt.measured}. {doubt.explanation}')


def built_record(track: str, row: str) -> Record:
    """The Record of a row that was computed here."""
    from benchmark.loading.rows import load_row
    from benchmark.results.record import Record

    return files.read_model(load_row(track, row).folder / "record" / "record.json", Record)


def import_robustbench(
    folder: Annotated[Path, typer.Argument(help="RobustBench's model_info, as a clone of it has it.")],
    track: TrackOption = "digits",
) -> None:
    """Show RobustBench's published rows beside a track's, as claimed: those of its data set and radii."""
    from benchmark.loading import tracks
    from benchmark.results import robustbench
    from benchmark.specs.base import to_json

    board, left_out = robustbench.read_board(paths.as_typed(folder), tracks.load(track))
    for line in left_out:
        console.print(f"left out: {line}")
    path = robustbench.CLAIMED / track / "robustbench.json"
    files.write(path, to_json(board))
    console.print(f"wrote {path}: {len(board.rows)} rows, {len(left_out)} left out; run `rvb repro`, commit it")
