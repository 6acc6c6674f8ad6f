"""Runs a track's pipeline through DVC, stages side by side.

DVC runs the stages of one file in order; several commands may run at once if each waits for the others' short locks. So:
the inputs files and the data first, then each stale stage by a command of its own, `dvc --wait-for-lock repro -s
FILE:STAGE`, as soon as what it reads is there, then one plain `dvc repro`, which finds the rows done, renders the board
and leaves the locks as a serial run would. Stages run as forks of one warm process, which has imported torch once.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from benchmark.loading import tracks
from benchmark.loading.rows import Row, load_row, load_rows
from benchmark.loading.run_settings import run_settings
from benchmark.pipeline import dvc, generate, graph, inputs, partial_board, schedule
from benchmark.pipeline.gpus import Places
from benchmark.pipeline.locks import mend_rwlock, put_in_order
from benchmark.pipeline.progress import Progress
from benchmark.pipeline.warm import warm_process
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import WORK
from benchmark.stages.catalogue import Planned
from benchmark.studies.grids import Grid

Report = Callable[[str], None]
Watch = Callable[[Progress], AbstractContextManager[object]]


def repro(
    track: str,
    jobs: int,
    report: Report,
    names: Sequence[str] = (),
    everything: bool = False,
    keep_going: bool = False,
    watch: Watch | None = None,
) -> None:
    """Brings rows of the track and its board up to date with `jobs` stages at a time.

    A stage that fails ends no other row's stages, but the run ends with an error and no board.

    Args:
        names: only these rows, and no board.
        everything: all rows, those with `default: false` too, and the board that shows them all beside the other.
        keep_going: where rows fail, render a board of the others in a folder of its own, which names those it lacks.
        watch: shows how far the run is as long as its context is open; without it, `report` gets a line a stage.

    Raises:
        BenchmarkError: unknown track or row, a stage that failed (its last line and its log are named), or DVC in a state
            that a person must mend.
    """
    chosen, boards = chosen_rows(track, names, everything)
    everything = generate.board_file(track, True) in boards
    mend_rwlock(report)
    for line in generate.write():
        report(line)
    if boards:
        shutil.rmtree(partial_board.folder(track), ignore_errors=True)
    inputs.write(track)
    for source in graph.foreign_sources(track, chosen):
        dvc.run(["repro", source], f"{track}-sources", report)
    changed = _changed(track, chosen, boards, report)
    if not changed:
        report(f"everything is up to date{f': open {_page(track, everything)}' if boards else ''}")
        return
    # a board needs no torch, which takes a warm process 9 core-seconds to import
    rendered = {f"{board}:leaderboard" for board in boards}
    with nullcontext("") if changed <= rendered else warm_process() as warm:
        data = f"{generate.data_file(track)}:data"
        if data in changed:
            dvc.run(["repro", "-s", data], f"{track}-data", report, warm)
        failed = _run_rows(track, graph.tasks_of(track, chosen, changed), jobs, report, warm, watch)
        if failed:
            stand = [row.name for row in chosen if row.name not in failed] if boards else []
            if keep_going and stand:
                partial_board.render(track, stand, failed, everything, report)
            raise partial_board.missing(failed, len(chosen), hint=bool(stand) and not keep_going)
        for board in boards:
            dvc.run(["repro", str(board)], f"{track}-board", report, warm)
    put_in_order(generate.data_file(track))
    for board in boards:
        refresh_times(track, board == generate.board_file(track, True))
    report(f"done: open {_page(track, everything)}" if boards else "done")


def chosen_rows(track: str, names: Sequence[str], everything: bool) -> tuple[list[Row], list[Path]]:
    """The rows that a run brings up to date, and the dvc.yaml of each board that it renders.

    Raises:
        BenchmarkError: unknown track or row, or a track without rows.
    """
    tracks.load(track)
    named, rows = [load_row(track, name) for name in dict.fromkeys(names)], load_rows(track)
    if not rows and track != generate.DEFAULT_TRACK:
        raise BenchmarkError(f"no submission enters track {track!r} yet; add a variant for it to a submission.yaml")
    if named:
        return named, []
    everything = everything and not all(row.default for row in rows)
    boards = [generate.board_file(track), *([generate.board_file(track, True)] if everything else [])]
    return [row for row in rows if everything or row.default], boards


def refresh_times(track: str, everything: bool) -> None:
    """Times on the board's pages: DVC keeps none, so a board brought back from its cache lacks them."""
    shown = generate.board_folder(track, everything) / "site" / "times.js"
    measured = [path.stat().st_mtime for path in (WORK / track).glob("*/times/*.json")]
    if not shown.exists() or shown.stat().st_mtime < max(measured, default=0.0):
        which = ["all"] if everything else []
        subprocess.run([sys.executable, "-m", "leaderboard.build", track, *which, "--times"], check=True)


def repro_study(grid: Grid, report: Report) -> None:
    """Brings a study up to date, with the data that it needs and nothing else.

    Raises:
        BenchmarkError: the same.
    """
    mend_rwlock(report)
    for line in generate.write():
        report(line)
    dvc.run(
        ["repro", str(generate.study_file(grid.track.name, grid.id))],
        f"{grid.track.name}-{grid.id}",
        report,
        about=grid.id,
    )


def _page(track: str, everything: bool) -> Path:
    return generate.board_folder(track, everything) / "site" / "index.html"


def _changed(track: str, rows: Sequence[Row], boards: Sequence[Path], report: Report) -> set[str]:
    """The stages that DVC would run now; what only writes the inputs files, which it always would, left out."""
    files = [*boards] or [generate.row_file(track, row.name) for row in rows]
    found = set().union(*(dvc.changed_stages(file, report) for file in files))
    return {stage for stage in found if not stage.endswith("_data/dvc.yaml:inputs")}


def _run_rows(
    track: str, tasks: dict[str, schedule.Task[Planned]], jobs: int, report: Report, warm: str, watch: Watch | None
) -> dict[str, str]:
    """Runs the stages; by row that is not done then, in order: why."""
    started: dict[str, float] = {}
    failed: dict[str, str] = {}
    places = Places(run_settings(), jobs)
    left = {name: sum(task.what.row.name == name for task in tasks.values()) for name in _names(tasks)}
    progress = Progress(tasks, jobs, None if watch else report)

    def work(key: str, one: Planned) -> None:
        row = one.row.name
        started.setdefault(row, time.monotonic())
        progress.start(key)
        try:
            with places.one() as gpu:
                dvc.run(["--wait-for-lock", "repro", "-s", key], f"{track}-{row}-{one.name}", report, warm, row, gpu)
        except BenchmarkError as error:
            report(f"{row}: failed")
            failed.setdefault(row, str(error))
            progress.end(key, failed=True)
            raise
        progress.end(key)
        left[row] -= 1
        if not left[row]:
            report(f"{row}: done in {time.monotonic() - started[row]:.0f} s")

    with watch(progress) if watch and tasks else nullcontext():
        schedule.run(tasks, jobs, work)
    for name in _names(tasks):
        put_in_order(generate.row_file(track, name))
    waits = {name: "starts from the weights of a row that failed" for name in left if left[name]}
    return failed | {name: why for name, why in waits.items() if name not in failed}


def _names(tasks: dict[str, schedule.Task[Planned]]) -> list[str]:
    return list(dict.fromkeys(task.what.row.name for task in tasks.values()))
