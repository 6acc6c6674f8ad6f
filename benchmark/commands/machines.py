"""What `rvb repro --engine` shows in a terminal: what runs where, since when, what is left, and what was spent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table

from benchmark.pipeline.progress import duration, left_words

if TYPE_CHECKING:
    from benchmark.pipeline.cluster.dispatch import Dispatch

MOST = 20  # stages that are named; a cluster's do not fit a terminal


@contextmanager
def watch(dispatch: Dispatch, console: Console) -> Iterator[None]:
    """Shows it below what is printed as long as the context is open."""

    class Now:
        def __rich__(self) -> RenderableType:
            return shown(dispatch)

    try:
        with Live(Now(), console=console, refresh_per_second=2, transient=True):
            yield
    finally:
        console.print(summary(dispatch, time.monotonic()))


def shown(dispatch: Dispatch, clock: Callable[[], float] = time.monotonic) -> RenderableType:
    """A line a stage that runs, those that have run longest first; then a line of what is left and what was spent."""
    now, sent = clock(), [*dispatch.sent.values()]  # the run goes on in another thread
    running = sorted((one for one in sent if one.machine), key=lambda one: one.since)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("stage", "of", "on", "for"):
        table.add_column(name, no_wrap=True)
    for one in running[:MOST]:
        piece = dispatch.tasks[one.key].what
        table.add_row(piece.name, piece.row.name, one.machine, duration(now - one.since))
    if len(running) > MOST:
        table.add_row("...", f"and {len(running) - MOST} more", "", "")
    return Group(table, summary(dispatch, now)) if running else Group(summary(dispatch, now))


def summary(dispatch: Dispatch, now: float) -> str:
    """`12 of 96 stages done, 2 run, about 5 min left; spent: 310 s of AMD EPYC`."""
    sent, done, tasks = [*dispatch.sent.values()], {*dispatch.done}, dispatch.tasks
    began = {one.key: one.since for one in sent if one.machine}
    left = [key for key in tasks if key not in done]
    elapsed = {key: min(now - began[key], tasks[key].seconds) for key in left if key in began}
    longest = max((dispatch.urgency[key] - elapsed.get(key, 0.0) for key in left), default=0.0)
    work = sum(tasks[key].seconds - elapsed.get(key, 0.0) for key in left)
    line = f"{len(done)} of {len(tasks)} stages done, {len(began)} run, {len(sent) - len(began)} wait for a place"
    if began:
        known = all(tasks[key].known for key in left)
        line += f", {left_words(max(longest, work / len(began)), known)}"
    spent = [f"{duration(seconds)} of {device}" for device, seconds in sorted(dispatch.seconds.items())]
    return line + (f"; spent: {', '.join(spent)}" if spent else "")
