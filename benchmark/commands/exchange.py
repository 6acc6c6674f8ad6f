"""`rvb import-robustbench`: another board's rows, as claimed. torch is not imported."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmark.commands.terminal import TrackOption, console


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
