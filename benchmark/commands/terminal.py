"""Shared parts of the commands: the console, options that several take, and shell completion.

Outside a checkout, and where a submission does not load, completion is silent: a shell has no place for messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Literal

import typer
from rich.console import Console

from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import submissions, tracks
from benchmark.specs.threat import Engine

COMPLETE = "_RVB_COMPLETE"  # set by a shell that asks for completions
INTERRUPTED = 130  # the exit status after Ctrl-C, as in shells
NARROWEST = 80  # the least width of tables, so that numbers are not cut
console = Console(highlight=False, soft_wrap=True, width=max(NARROWEST, Console().width))


def row_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the rows that complete a word: of the track that --track names, without those already given."""
    given = context.params.get("rows") or ()
    with suppress(BenchmarkError):
        rows = submissions.rows(context.params.get("track") or "digits")
        names = [f"{submission.name}-{variant}" for submission, variant in rows]
        return [name for name in names if name.startswith(incomplete) and name not in given]
    return []


def track_names(incomplete: str) -> list[str]:
    return [name for name in tracks.names() if name.startswith(incomplete)]


TrackOption = Annotated[str, typer.Option(help="Which comparison.", autocompletion=track_names)]
RowsArgument = Annotated[
    list[str] | None, typer.Argument(help="<submission>-<variant>: these alone, no board.", autocompletion=row_names)
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
JsonOption = Annotated[bool, typer.Option("--json", help="All that was found, as JSON.")]
ReasonOption = Annotated[
    str, typer.Option(help="Why numbers that are published already change; it goes into the Record and CHANGELOG.md.")
]


@contextmanager
def resumable() -> Iterator[None]:
    """Say, when Ctrl-C ends the block, that the same command resumes the work."""
    try:
        yield
    except KeyboardInterrupt:
        console.print("interrupted; what is done is kept, and the same command goes on from there")
        raise typer.Exit(INTERRUPTED) from None
