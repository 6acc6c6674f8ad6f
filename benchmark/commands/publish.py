"""`rvb publish`: Records and studies that git keeps. torch is imported by the calls that need it."""

from __future__ import annotations

from typing import Annotated

import typer

from benchmark.commands.rows import built_record
from benchmark.commands.terminal import TrackOption, console


def publish(
    row: Annotated[str, typer.Argument(help="<submission>-<variant>, or <submission> with --study")],
    track: TrackOption = "digits",
    study: Annotated[str, typer.Option(help="Publish this study of the submission; its track is its own.")] = "",
) -> None:
    """Copy a row's Record, or a study, to leaderboard/results/, where git and reviewers see it."""
    from benchmark.runtime import files
    from benchmark.runtime.paths import PUBLISHED
    from benchmark.specs.base import to_json
    from benchmark.studies import grids
    from benchmark.studies.published import collect_study

    if study:
        grid = grids.load(row, study)
        path, text = PUBLISHED / grid.track.name / "studies" / f"{grid.id}.json", to_json(collect_study(grid))
    else:
        path, text = PUBLISHED / track / f"{row}.json", to_json(built_record(track, row))
    files.write(path, text)
    console.print(f"wrote {path}; commit it")
