"""What the commands share: the console they print on, and the options that several of them take."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from rich.console import Console

from benchmark.commands.completion import row_names, track_names
from benchmark.specs.threat import Engine

console = Console(highlight=False, soft_wrap=True)
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
