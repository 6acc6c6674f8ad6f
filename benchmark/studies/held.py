"""A study behind the wall: its networks and measures are a submission's code."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from benchmark.loading.confining import messages, submission_files, wall
from benchmark.loading.rows import Row
from benchmark.specs.submission import VariantOnTrack
from benchmark.studies.grids import Grid
from benchmark.wall.channel import Channel, Printed
from benchmark.wall.process import plain

SECONDS = 12 * 3600.0  # that a cell may take with one seed

Seconds = list[dict[str, Any]]


def run_held(grid: Grid, folder: Path, devices: str, run: Callable[[Callable[[str], None]], Seconds]) -> Seconds:
    """`run`, which is told where to say how far it is: behind the wall where there is one. It sees the study's data and the
    weights that cells start from, and writes to `folder` alone.

    Raises:
        BenchmarkError: as `run` does, or the process fails.
    """
    held = wall()
    if not held.stands:
        return run(lambda text: print(text, flush=True))

    def work(channel: Channel) -> None:
        with redirect_stdout(Printed(channel)):
            taken = run(print)
        channel.send({"seconds": taken})

    rows = [row_of(grid, cell) for cell in grid.cells.values()]
    read = [*submission_files(*rows, *(row.source for row in rows)), grid.data.absolute()]
    read += [start.absolute() for start in grid.starts]
    owner, taken = f"submissions/{grid.submission.name}", Seconds()
    seconds = SECONDS * len(grid.cells) * len(grid.study.seeds)
    for message in messages(work, held, owner, read=read, write=[folder.absolute()], seconds=seconds, device=devices):
        if "say" in message:
            print(plain(message["say"]), flush=True)
        else:
            taken = TypeAdapter(Seconds).validate_python(message.get("seconds"))
    return taken


def row_of(grid: Grid, settings: VariantOnTrack) -> Row:
    """The row that a cell's settings are."""
    return Row(grid.track, grid.submission, grid.study.variant, settings)
