"""Commands of `rvb` that pass rows on: to and from RobustBench. torch is not imported."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmark.commands.rows import built_record
from benchmark.commands.terminal import RowArgument, TrackOption, console
from benchmark.runtime.errors import BenchmarkError, near_miss


def import_robustbench(
    folder: Annotated[
        Path | None, typer.Argument(help="RobustBench's model_info (default: the installed one).")
    ] = None,
    track: TrackOption = "digits",
) -> None:
    """Show RobustBench's published rows beside a track's, as claimed: those of its data set and radii."""
    from benchmark.loading import tracks
    from benchmark.results import robustbench
    from benchmark.runtime import files
    from benchmark.specs.base import to_json

    board, left_out = robustbench.read_board(folder or robustbench.installed_folder(), tracks.load(track))
    for line in left_out:
        console.print(f"left out: {line}")
    path = robustbench.CLAIMED / track / "robustbench.json"
    files.write(path, to_json(board))
    console.print(f"wrote {path}: {len(board.rows)} rows, {len(left_out)} left out; run `rvb repro`, commit it")


def export_robustbench(
    row: RowArgument,
    track: TrackOption = "digits",
    threat: Annotated[str, typer.Option(help="Such as 'L2 0.5' (default: the smallest radius of each norm).")] = "",
    out: Annotated[Path, typer.Option(help="Where model_info/ is laid out.")] = Path("work/model_info"),
) -> None:
    """Write a row's numbers as RobustBench's JSON."""
    from benchmark.loading import tracks
    from benchmark.results import robustbench

    rules = tracks.load(track)
    labels = {t.label: t for t in rules.threats}
    if threat and threat not in labels:
        raise BenchmarkError(f"track {track} has no threat model {threat!r}{near_miss(threat, labels)}")
    smallest = {t.norm: t for t in reversed(rules.threats)}
    chosen = (labels[threat],) if threat else tuple(smallest.values())
    for path in robustbench.export(built_record(track, row), rules, out, chosen):
        console.print(f"wrote {path}")
