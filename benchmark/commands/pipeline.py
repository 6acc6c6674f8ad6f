"""Commands of the pipeline: `rvb repro`, `rvb pipeline`, `rvb step`. torch is imported by the calls that need it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from benchmark.commands.completion import row_names
from benchmark.commands.terminal import (
    AllOption,
    EngineOption,
    JobsOption,
    RowsArgument,
    TrackOption,
    checked_engine,
    console,
)
from benchmark.runtime.errors import LEFT_OUT, BenchmarkError, near_miss

ENGINES = ("ray", "slurm")
INTERRUPTED = 130  # the exit status of what Ctrl-C ended, as shells have it


def repro(
    rows: RowsArgument = None,
    track: TrackOption = "digits",
    jobs: JobsOption = None,
    everything: AllOption = False,
    dry: Annotated[bool, typer.Option("--dry-run", "-n", help="Say which stages would run; run nothing.")] = False,
    engine: Annotated[
        str, typer.Option("--engine", help="ray or slurm: stages on many machines (docs/scale.md).")
    ] = "",
    address: Annotated[
        str,
        typer.Option("--address", help="Of a Ray cluster; without it Ray runs on this machine, --jobs cores of it."),
    ] = "",
) -> None:
    """Train, attack and certify every row that changed, then render the leaderboard.

    A row that fails does not keep the others from being built; the exit status is 1 then.
    """
    if rows and everything:
        raise BenchmarkError("--all builds every row; leave out the rows")
    from benchmark.loading.run_settings import run_settings
    from benchmark.pipeline.gpus import default_jobs

    jobs = jobs or default_jobs(run_settings())
    if engine or address:
        _on_engine(engine, address, jobs, track, rows or (), everything, dry)
        return
    from benchmark.pipeline import repro as pipeline

    if dry:
        pipeline.dry_run(track, console.print, rows or (), everything)
    else:
        pipeline.repro(track, jobs, console.print, rows or (), everything)


def _on_engine(
    engine: str, address: str, jobs: int, track: str, rows: Sequence[str], everything: bool, dry: bool
) -> None:
    if engine and engine not in ENGINES:
        raise BenchmarkError(f"unknown engine {engine!r}{near_miss(engine, ENGINES)}")
    if address and engine != "ray":
        raise BenchmarkError("--address needs --engine ray")
    if dry:
        raise BenchmarkError("--dry-run does not go with --engine; leave out one of them")
    from benchmark.pipeline import ray, slurm

    try:
        if engine == "ray":
            ray.repro(track, address, jobs, console.print, rows, everything)
        else:
            slurm.repro(track, console.print, rows, everything)
    except KeyboardInterrupt:
        console.print("interrupted; what is done is kept, and the same command goes on from there")
        raise typer.Exit(INTERRUPTED) from None


def pipeline(
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; fail if a file is stale or a submission broken.")
    ] = False,
) -> None:
    """Write the DVC stages from the submissions."""
    from benchmark.loading import tracks
    from benchmark.pipeline import generate as stages
    from benchmark.pipeline import inputs

    if check:
        LEFT_OUT.clear()
        stale = stages.stale()
        for name in tracks.names():
            inputs.contents(name)
        if LEFT_OUT:
            raise BenchmarkError(f"{len(LEFT_OUT)} broken: {'; '.join(LEFT_OUT)}")
        if stale:
            raise BenchmarkError(f"{', '.join(map(str, stale))} no longer fit the submissions; run `rvb pipeline`")
        console.print("the pipeline fits the submissions")
        return
    changed = stages.write()
    console.print("\n".join(changed) or "the pipeline fits the submissions")


def step(
    name: Annotated[str, typer.Argument(help="Such as data, train, attack-<suite>, certify or collect.")],
    row: Annotated[str, typer.Argument(help="<submission>-<variant>; not for data", autocompletion=row_names)] = "",
    track: TrackOption = "digits",
    engine: EngineOption = "",
) -> None:
    """Run one step by hand, outside DVC (to debug a submission)."""
    from benchmark import protocol
    from benchmark.loading.rows import load_row
    from benchmark.loading.run_settings import using_engine
    from benchmark.pipeline import inputs
    from benchmark.runtime import code

    kind = protocol.load(name)
    if bool(kind.subject) != bool(row):
        needs = f"step {name} needs a {kind.subject}: <submission>-<{'variant' if kind.subject == 'row' else 'study'}>"
        raise BenchmarkError(needs if kind.subject else f"the {name} step takes no row")
    with using_engine(checked_engine(engine)):
        settings = protocol.planned(load_row(track, row), name).settings if kind.subject == "row" else {}
        if engine and "engine" not in settings:
            raise BenchmarkError("only attack steps have engines")
        if kind.subject == "row":
            inputs.of_row(load_row(track, row), code.digests)  # else it would be left out
        inputs.write(track)
        if kind.subject == "row":
            kind.execute(name, track, row, again=True)
        else:
            kind.execute(name, track, row)
    if engine:
        inputs.write(track)  # what params.yaml says, for the next `rvb repro`
