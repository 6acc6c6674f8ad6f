"""Commands of the pipeline: `rvb repro`, `rvb plan`, `rvb pipeline`, `rvb step`. Only what they call imports torch."""

from __future__ import annotations

import re
from typing import Annotated

import typer
from rich.table import Table

from benchmark import protocol
from benchmark.commands.terminal import (
    AllOption,
    EngineOption,
    JobsOption,
    MachinesOption,
    RowsArgument,
    TrackOption,
    console,
    resumable,
    row_names,
)
from benchmark.pipeline import generate, inputs, ray, slurm
from benchmark.pipeline import repro as building
from benchmark.pipeline.costs import costs
from benchmark.pipeline.gpus import default_jobs
from benchmark.runtime import code
from benchmark.runtime.errors import LEFT_OUT, BenchmarkError
from benchmark.specs import submissions, tracks
from benchmark.specs.rows import load_row
from benchmark.specs.run_settings import run_settings, using_engine


def plan(rows: RowsArgument = None, track: TrackOption = "digits", everything: AllOption = False) -> None:
    """Print what each step took when it last ran here or was published: seconds, core-seconds, GPU-seconds, GPU memory."""
    if rows and everything:
        raise BenchmarkError("--all stands for every row; leave out the rows")
    table = Table(box=None, pad_edge=False)
    table.add_column("row, step", no_wrap=True)
    for heading in ("seconds", "core-seconds", "GPU-seconds", "GPU memory"):
        table.add_column(heading, justify="right", no_wrap=True)
    sums, unknown = [0.0, 0.0], 0
    for row in building.chosen_rows(track, rows or (), everything)[0]:
        table.add_row(row.name, style="bold")
        costs_by_step = costs(row)
        for step in protocol.plan(row):
            cost = costs_by_step.get(step.name, {})
            unknown += not cost
            shown = [cost.get(key) for key in ("wall_seconds", "core_seconds", "device_seconds")]
            sums = [total + (much or 0.0) for total, much in zip(sums, shown, strict=False)]
            memory = f"{cost['device_memory'] / 2**20:.0f} MiB" if cost.get("device_memory") else ""
            table.add_row(f"  {step.name}", *("" if much is None else f"{much:.0f}" for much in shown), memory)
    console.print(table)
    console.print(f"together {sums[0]:.0f} s, {sums[1]:.0f} core-seconds, one row after another")
    if unknown:
        console.print(f"{unknown} step{'s' if unknown > 1 else ''} never ran here, and no published time is known")


def repro(
    rows: RowsArgument = None,
    track: TrackOption = "digits",
    jobs: JobsOption = None,
    everything: AllOption = False,
    dry: Annotated[bool, typer.Option("--dry-run", "-n", help="Say which stages would run; run nothing.")] = False,
    engine: MachinesOption = None,
    address: Annotated[
        str, typer.Option("--address", help="Of a Ray cluster; without it Ray runs on this machine, --jobs cores of it.")
    ] = "",
) -> None:
    """Train, attack and certify every row that changed, then render the leaderboard.

    A row that fails or does not load does not keep the others from being built; the exit status is 1 then.
    """
    if rows and everything:
        raise BenchmarkError("--all builds every row; leave out the rows")
    if address and engine != "ray":
        raise BenchmarkError("--address needs --engine ray")
    if dry and engine:
        raise BenchmarkError("--dry-run does not go with --engine; leave out one of them")
    jobs = jobs or default_jobs(run_settings())
    if dry:
        building.dry_run(track, console.print, rows or (), everything)
        return
    with resumable():
        if engine == "ray":
            ray.run(track, address, jobs, console.print, rows or (), everything)
        elif engine:
            slurm.run(track, console.print, rows or (), everything)
        else:
            building.repro(track, jobs, console.print, rows or (), everything)
    settings = [path for path in submissions.FOLDER.glob("*/submission.y*ml") if path.is_file()]
    enters = re.compile(rf"^[^#\n]*(?<![\w-]){re.escape(track)}\s*:", re.MULTILINE)
    folders = tuple(f"{path.parent}/" for path in settings if enters.search(path.read_text(errors="replace")))
    lines = [line for line in LEFT_OUT if line.startswith(folders) and "/studies/" not in line]
    if lines and not rows:
        raise BenchmarkError(f"the board lacks what was left out: {'; '.join(lines)}")


def pipeline(
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; fail if a file is stale or a submission broken.")
    ] = False,
) -> None:
    """Write the DVC stages from the submissions."""
    if check:
        LEFT_OUT.clear()
        stale = generate.stale()
        for name in tracks.names():
            inputs.contents(name)
        if LEFT_OUT:
            raise BenchmarkError(f"{len(LEFT_OUT)} broken: {'; '.join(LEFT_OUT)}")
        if stale:
            raise BenchmarkError(f"{', '.join(map(str, stale))} no longer fit the submissions; run `rvb pipeline`")
        console.print("the pipeline fits the submissions")
        return
    console.print("\n".join(generate.write()) or "the pipeline fits the submissions")


def step(
    name: Annotated[str, typer.Argument(help="Such as data, train, attack-<suite>, certify or collect.")],
    row: Annotated[str, typer.Argument(help="<submission>-<variant>; not for data", autocompletion=row_names)] = "",
    track: TrackOption = "digits",
    engine: EngineOption = None,
) -> None:
    """Run one step by hand, outside DVC (to debug a submission)."""
    if name == "data":
        if row:
            raise BenchmarkError("the data step takes no row")
        if engine:
            raise BenchmarkError("only attack steps have engines")
        inputs.write(track)
        protocol.run("data", track)
        return
    protocol.load(name)
    if not row:
        raise BenchmarkError(f"step {name} needs a row: <submission>-<variant>")
    with using_engine(engine or ""):
        planned = protocol.planned(load_row(track, row), name)
        if engine and "engine" not in planned.settings:
            raise BenchmarkError("only attack steps have engines")
        inputs.of_row(load_row(track, row), code.digests)  # raises what `write` would leave out
        inputs.write(track)
        planned.execute(again=True)
    if engine:
        inputs.write(track)  # with the engine of params.yaml, for the next `rvb repro`
