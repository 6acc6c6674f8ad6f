"""What the commands share: the console they print on, and the options that several of them take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Literal

import typer
from rich.console import Console

from benchmark.commands.completion import row_names, track_names
from benchmark.specs.threat import Engine

INTERRUPTED = 130  # the exit status of what Ctrl-C ended, as shells have it
NARROWEST = 80  # columns that tables are printed in, at least: numbers are not cut
console = Console(highlight=False, soft_wrap=True, width=max(NARROWEST, Console().width))
TrackOption = Annotated[str, typer.Option(help="Which comparison.", autocompletion=track_names)]
RowsArgument = Annotated[
    list[str] | None,
    typer.Argument(help="<submission>-<variant>: these alone, no board.", autocompletion=row_names),
]
JobsOption = Annotated[
    int | None, typer.Option("--jobs", "-j", min=1, help="Stages at a time; by default one a core, or one a GPU.")
]
AllOption = Annotated[bool, typer.Option("--all", help="Rows with `default: false` too, and their board.")]
RowArgument = Annotated[str, typer.Argument(help="<submission>-<variant>", autocompletion=row_names)]
EngineOption = Annotated[Engine | None, typer.Option(help="Of AutoAttack (default: params.yaml's).")]
MachinesOption = Annotated[
    Literal["ray", "slurm"] | None, typer.Option("--engine", help="Stages on many machines (docs/scale.md).")
]


@contextmanager
def resumable() -> Iterator[None]:
    """Say, when Ctrl-C ends the block, that the same command goes on."""
    try:
        yield
    except KeyboardInterrupt:
        console.print("interrupted; what is done is kept, and the same command goes on from there")
        raise typer.Exit(INTERRUPTED) from None
