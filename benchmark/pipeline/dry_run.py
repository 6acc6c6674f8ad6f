"""`rvb repro --dry-run`: what would run, why, and for how long; runs and writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from benchmark.pipeline import generate
from benchmark.pipeline.graph import foreign_sources, tasks_of, times_file
from benchmark.pipeline.progress import Progress, duration
from benchmark.pipeline.repro import chosen_rows
from benchmark.pipeline.schedule import Task
from benchmark.pipeline.state import State
from benchmark.stages.catalogue import Planned

Report = Callable[[str], None]


def dry_run(track: str, jobs: int, report: Report, names: Sequence[str] = (), everything: bool = False) -> None:
    """Says what `repro` with the same arguments would run.

    A stage that comes after another may in the end not run: it does so where what it reads changes.

    Raises:
        BenchmarkError: unknown track or row, or a submission that does not load.
    """
    chosen, boards = chosen_rows(track, names, everything)
    state, wanted = State(track), generate.generate()
    for path in generate.stale(wanted):
        report(f"{path if path in wanted else path.parent}: would be {'written' if path in wanted else 'removed'}")
    data, sources = f"{generate.data_file(track)}:data", foreign_sources(track, chosen)
    tasks = tasks_of(track, chosen, {stage for stage in state.stages if state.why(stage)})
    shared = [(stage, words) for stage in (*sources, data) if (words := state.why(stage))]
    for stage, words in shared:
        report(f"{stage}: {words}")
    _report_rows(tasks, state, report)
    rendered = [(board, words) for board in boards if (words := state.why(f"{board}:leaderboard"))]
    for board, words in rendered:
        report(f"{board}:leaderboard: {words}")
    if not tasks and not shared and not rendered:
        report("everything is up to date; nothing would run")
        return
    progress = Progress(tasks, jobs)
    about = f"about {duration(progress.seconds_left())}"
    left = about if progress.known() else "for how long is unknown (rvb plan estimates it)"
    rows = len({task.what.row.name for task in tasks.values()})
    stages = f"{len(tasks)} stage{'s' if len(tasks) != 1 else ''} of {rows} row{'s' if rows != 1 else ''}"
    report(f"{stages} would run with {jobs} at a time, {left}; nothing was run")


def _report_rows(tasks: Mapping[str, Task[Planned]], state: State, report: Report) -> None:
    """By row a line a stage: how long it took last time, or tends to take, and why it would run."""
    row = ""
    for key, task in tasks.items():
        one = task.what
        if one.row.name != row:
            row = one.row.name
            report(row)
        source = "last time" if times_file(one).exists() else "typical"
        report(f"  {one.name:16} {duration(task.seconds):>7} {source:9}  {state.why(key)}")
