"""`rvb plan`: how long, how much memory and how much disk `rvb repro` with the same options would take, on this machine."""

from __future__ import annotations

import shutil
import warnings
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmark.commands.terminal import AllOption, JobsOption, RowsArgument, TrackOption, console
from benchmark.runtime.errors import BenchmarkError

if TYPE_CHECKING:
    from benchmark.pipeline.planning import Plan, PlannedStage


def plan(
    rows: RowsArgument = None,
    track: TrackOption = "digits",
    jobs: JobsOption = None,
    everything: AllOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="All that was measured, as JSON.")] = False,
) -> None:
    """Measure how long, how much memory and how much disk `rvb repro` would take; runs no stage and writes nothing.

    A few steps of each training and attack are timed on random images; exit status 1 if a row cannot be measured.
    """
    if rows and everything:
        raise BenchmarkError("--all builds every row; leave out the rows")
    warnings.simplefilter("ignore", FutureWarning)  # torch's, of its own modules
    from benchmark.loading.run_settings import run_settings
    from benchmark.pipeline.gpus import default_jobs
    from benchmark.pipeline.planning import plan_run
    from benchmark.specs.base import to_json

    progress = Console(stderr=True, highlight=False, soft_wrap=True)
    found = plan_run(track, jobs or default_jobs(run_settings()), rows or (), everything, progress.print)
    if as_json:
        typer.echo(to_json(found), nl=False)
    else:
        _print(found)
    if found.failed:
        raise typer.Exit(1)


def _print(plan: Plan) -> None:
    from benchmark.loading.run_settings import computes_on

    todo = [stage for stage in plan.stages if stage.how != "done"]
    if todo:
        console.print(_table(plan))
    elif not plan.failed:
        console.print("everything is up to date; nothing would run")
    for row, why in plan.failed.items():
        console.print(f"{row} cannot be measured: {why}", markup=False)
    if not todo:
        return
    console.print(f"trains on {computes_on('train')}, evaluates on {computes_on('attack')}", markup=False)
    _print_sums(plan, todo)
    whens = dict.fromkeys(stage.note for stage in todo if stage.seconds != stage.most)
    for words in filter(None, whens):
        console.print(f"most: where besides {words}", markup=False)
    console.print(
        "at most: as if no image broke and every sample were drawn, a fraction of it where many break; typical: what its "
        "kind takes on digits"
    )
    for words in plan.uncounted:
        console.print(f"not counted: {words}", markup=False)


def _print_sums(plan: Plan, todo: list[PlannedStage]) -> None:
    """What passes, and what is needed of this machine beside what it has."""
    import psutil

    from benchmark.pipeline.progress import duration

    once, most = duration(plan.passes), duration(plan.passes_at_most)
    at_most = f" where no image breaks, {most} at most" if most != once else ""
    count = f"{len(todo)} stage{'s' if len(todo) != 1 else ''}"
    console.print(f"{count}, about {once} with {plan.jobs} at a time{at_most}")
    free = psutil.virtual_memory().available
    short = "" if plan.memory <= free else "; run fewer at a time"
    console.print(f"memory: {size(plan.memory)} with {plan.jobs} at a time, of {size(free)} that are free{short}")
    if plan.gpu:
        console.print(f"GPU memory: {size(plan.gpu)} for the stage that needs most, all that was in use on it included")
    left = shutil.disk_usage(".").free
    short = "" if 2 * plan.disk + plan.scratch <= left else "; free some space"
    console.print(
        f"disk: {size(plan.disk)} kept in work/, as much again in DVC's cache where files cannot be shared, "
        f"{size(plan.scratch)} meanwhile, of {size(left)} that are free{short}"
    )


def _table(plan: Plan) -> Table:
    from benchmark.pipeline.progress import duration

    gpu = bool(plan.gpu)
    table = Table(box=None, pad_edge=False)
    longest = max(len(stage.row) for stage in plan.stages)
    for heading in ("row, stage", "seconds", "most", "memory", *(["GPU"] if gpu else []), "disk", ""):
        table.add_column(
            heading,
            justify="left" if heading in ("row, stage", "") else "right",
            min_width=longest if heading == "row, stage" else None,
        )
    before = ""
    for stage in plan.stages:
        if stage.row != before:
            own = [one for one in plan.stages if one.row == stage.row]
            sums = (duration(sum(one.seconds for one in own)), duration(sum(one.most for one in own)))
            peaks = [size(max(one.memory for one in own))] + ([size(max(one.gpu for one in own))] if gpu else [])
            table.add_row(stage.row, *sums, *peaks, size(sum(one.disk for one in own)), "", style="bold")
            before = stage.row
        if stage.how == "done":
            table.add_row(f"  {stage.stage}", *[""] * (5 if gpu else 4), "done")
            continue
        cells = [duration(stage.seconds), duration(stage.most), size(stage.memory)]
        cells += [size(stage.gpu)] if gpu else []
        table.add_row(
            f"  {stage.stage}",
            *cells,
            size(stage.disk),
            _words(stage),
        )
    return table


def _words(stage: PlannedStage) -> str:
    """What stands beside the stage; when it takes most is said below."""
    return f"{stage.how}: {stage.note}" if stage.note and stage.seconds == stage.most else stage.how


def size(count: float) -> str:
    """Bytes in the unit that fits: `12 kB`, `3.4 MB`, `1.2 GB`; "" for none."""
    if not count:
        return ""
    for unit in ("kB", "MB"):
        count /= 1000
        if count < 999.5:
            return f"{max(count, 1):.0f} {unit}" if count >= 10 or unit == "kB" else f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} GB"
