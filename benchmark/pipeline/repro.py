"""Run a track's pipeline through DVC, rows side by side.

DVC runs the stages of one file in order; several commands may run at once if each waits for the others' short locks. So:
the inputs files and the data first, then each row by `dvc --wait-for-lock repro -s <its stages>`, then one plain
`dvc repro` of the board, which finds the rows done. An engine runs the rows elsewhere (ray.py, slurm.py).
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from graphlib import TopologicalSorter
from pathlib import Path
from threading import Event

from benchmark import protocol
from benchmark.pipeline import costs, dvc, generate, inputs
from benchmark.pipeline.dvc import Report
from benchmark.pipeline.gpus import GPUS, places
from benchmark.records.study import StudyResult
from benchmark.runtime import code
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import WORK
from benchmark.sandbox import forks
from benchmark.specs import tracks
from benchmark.specs.rows import NO_ROWS, Row, load_row, load_rows
from benchmark.specs.run_settings import run_settings
from benchmark.studies.grids import Grid

COORDINATOR = WORK / ".coordinator.lock"
MANY = 1000  # rows that are sent to a cluster at a time, which has a queue of its own
# runs stages, `<dvc.yaml>:<name>`, of a row one after another, until the event is set; raises BenchmarkError
Runner = Callable[[Row, Sequence[str], Event], None]
Targets = Mapping[str, Sequence[str]]  # by row, the stages that are to run
# yields a Runner; refuses what it cannot run before any row starts
Engine = Callable[[Sequence[Row], Targets], AbstractContextManager[Runner]]


def repro(
    track: str, jobs: int, report: Report, names: Sequence[str] = (), everything: bool = False,
    engine: Engine | None = None, remote: bool = False,
) -> None:  # fmt: skip
    """Bring rows of the track and its board up to date, `jobs` rows at a time.

    A row that fails ends no other row, but the run ends with an error and no board.

    Args:
        names: only these rows, and no board.
        everything: all rows, also those with `default: false`, and the board of all rows beside the other.
        engine: where the rows run; by default in processes of this machine.
        remote: pull the rows' results from the DVC remote, before and after.

    Raises:
        BenchmarkError: unknown track or row; rows that failed, each with its first error and its log; rows that the engine
            cannot run; or a state of DVC that a person must mend.
    """
    rows, boards = chosen_rows(track, names, everything)
    all_rows = with_sources(rows)
    foreign = [row.source for row in all_rows if row.source and row.source.track.name != track]
    prepare(track, foreign, report)
    chosen = {row.name for row in rows}
    targets = {row.name: stages(row)[: None if row.name in chosen else 1] for row in all_rows}

    def pull(keys_by_row: Targets) -> None:
        if keys := [key for own in keys_by_row.values() for key in own]:
            dvc.run(["pull", "--force", "--allow-missing", *keys], f"{track}-pull", report)

    if remote:
        pull(targets)
    changed = dvc.changed_stages([_file(row) for row in rows] + boards)
    if not changed:
        report(f"everything is up to date{f': open {_page(track, boards)}' if boards else ''}")
        return
    stale: list[Row] = []
    stages_of: dict[str, Sequence[str]] = {}
    for row in all_rows:
        own = targets[row.name]
        starts_anew = any(key.endswith(":train") for key in stages_of.get(start_of(row), ()))
        if not (starts_anew or own[0] in changed):
            own = [key for key in own if key in changed]
        if own:
            stale.append(row)
            stages_of[row.name] = own
    failed: dict[str, str] = {}
    if stale:
        with engine(stale, stages_of) if engine else nullcontext(here(jobs, report)) as run:
            failed = build(stale, stages_of, jobs, report, run)
    if remote:
        pull(stages_of)
    if failed:
        words = "; ".join(f"{name}: {why}" for name, why in failed.items())
        board = ", so there is no new board" if boards else ""
        raise BenchmarkError(f"{len(failed)} of {len(rows)} rows failed{board}: {words}")
    for file in boards:
        dvc.run(["repro", str(file)], f"{track}-board", report)
        refresh_times(track, file == generate.board_file(track, True))
    report(f"done: open {_page(track, boards)}" if boards else "done")


def prepare(track: str, sources: Sequence[Row], report: Report) -> None:
    """Write the files that DVC reads, the inputs files and the data. Train `sources`, from which other rows start."""
    dvc.check_place()
    dvc.check_rwlock()
    dvc.remove_cut(report)
    for line in generate.write():
        report(line)
    for source in {_file(source): source for source in sources}.values():
        dvc.run(["repro", f"{_file(source)}:train"], f"{source.track.name}-{source.name}", report, source.name)
    dvc.run(["repro", str(generate.data_file(track))], f"{track}-data", report)


def here(jobs: int, report: Report) -> Runner:
    """Return what runs rows by DVC in processes of this machine, `jobs` at a time, each on GPUs of its own.

    On the CPU, rows run several of their steps at a time when fewer than `jobs` of them are left.
    """
    settings = run_settings()
    free, shared = places(settings, jobs), {protocol.CORES: str(jobs)} if settings.devices == "cpu" else {}

    def run(row: Row, targets: Sequence[str], _: Event) -> None:
        gpu = free.get()
        try:
            variables = shared if gpu is None else {GPUS: gpu}
            arguments = ["--wait-for-lock", "repro", "-s", *targets]
            dvc.run(arguments, f"{row.track.name}-{row.name}", report, row.name, variables)
        finally:
            free.put(gpu)

    return run


def build(rows: Sequence[Row], targets: Targets, jobs: int, report: Report, run: Runner) -> dict[str, str]:
    """Bring rows of a track up to date, `jobs` at a time, longest first. Return by row why it failed.

    Args:
        rows: each after the row from whose weights it starts.
    """
    by_name = {row.name: row for row in rows}
    starts = {start for row in rows if (start := start_of(row)) in by_name}  # which others wait for
    order = TopologicalSorter({name: {start_of(row)} & starts for name, row in by_name.items()})
    order.prepare()
    failed: dict[str, str] = {}
    running: dict[Future[None], str] = {}
    waiting: list[str] = []
    interrupted = Event()

    def run_row(row: Row) -> None:
        started = time.monotonic()
        if not all(step.inputs.exists() for step in protocol.plan(row)):
            inputs.of_row(row, code.digests)  # raises what is wrong with the row's code, in one line
        run(row, targets[row.name], interrupted)
        report(f"{row.name}: done in {time.monotonic() - started:.0f} s")

    with ThreadPoolExecutor(max(1, jobs)) as pool:
        try:
            while order.is_active():
                waiting += order.get_ready()
                waiting.sort(key=lambda name: (name not in starts, *haste(by_name[name])))
                while waiting and len(running) < max(1, jobs):
                    name = waiting.pop(0)
                    running[pool.submit(run_row, by_name[name])] = name
                if not running:
                    break  # what is left waits for a row that failed
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    name = running.pop(future)
                    try:
                        future.result()
                        order.done(name)
                    except BenchmarkError as error:
                        report(f"{name}: failed")
                        failed[name] = str(error)
        finally:
            interrupted.set()  # rows still run only where this run was interrupted
    for row in rows:  # a row stands after the one from which it starts
        if start_of(row) in failed:
            failed.setdefault(row.name, "starts from the weights of a row that failed")
    return failed


def dry_run(track: str, report: Report, names: Sequence[str] = (), everything: bool = False) -> None:
    """Report the stages that DVC would run, by `dvc status`: `dvc repro --dry` fails where results are missing."""
    rows, boards = chosen_rows(track, names, everything)
    dvc.check_place()
    generate.write()
    inputs.write(track)
    stale = sorted(dvc.changed_stages([_file(row) for row in rows] + boards))
    for stage in stale:
        report(stage)
    report("these stages would run, and those that read what they write" if stale else "everything is up to date")


@contextmanager
def alone() -> Iterator[None]:
    """Hold the lock of this checkout's coordinator. Raise a BenchmarkError if another process holds it."""
    COORDINATOR.parent.mkdir(parents=True, exist_ok=True)
    with COORDINATOR.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BenchmarkError("another `rvb repro --engine` runs in this checkout; wait for it or end it") from None
        yield


def chosen_rows(track: str, names: Sequence[str], everything: bool) -> tuple[list[Row], list[Path]]:
    """Return the rows that a run brings up to date, and the dvc.yaml of each board that it renders.

    Raise a BenchmarkError for an unknown track or row, or a track without rows.
    """
    tracks.load(track)
    named, rows = [load_row(track, name) for name in dict.fromkeys(names)], load_rows(track)
    if not rows and track != generate.DEFAULT_TRACK:
        raise BenchmarkError(NO_ROWS.format(track))
    if named:
        return named, []
    everything = everything and not all(row.default for row in rows)
    boards = [generate.board_file(track), *([generate.board_file(track, True)] if everything else [])]
    return [row for row in rows if everything or row.default], boards


def with_sources(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, and before each the row of the same track from whose weights it starts."""
    ordered: dict[str, Row] = {}

    def add(row: Row) -> None:
        if row.source and start_of(row):
            add(row.source)
        ordered.setdefault(row.name, row)

    for row in rows:
        add(row)
    return [*ordered.values()]


def start_of(row: Row) -> str:
    """Return the name of the row of the same track from whose weights it starts; "" where there is none."""
    return row.source.name if row.source and row.source.track.name == row.track.name else ""


def stages(row: Row) -> list[str]:
    """Return the stages of a row in their order, as DVC addresses them: `<dvc.yaml>:<name>`."""
    return [f"{_file(row)}:{name}" for name in protocol.stages(row)]


def haste(row: Row) -> tuple[float, bool, int]:
    """Return a key that sorts rows by what their steps took, longest first, unknown times before all.

    Then come rows trained against attacks, which take long to break, and rows of many steps.
    """
    taken, steps = costs.costs(row), len(protocol.plan(row))
    seconds = sum(cost["wall_seconds"] for cost in taken.values()) if len(taken) == steps else float("inf")
    return -seconds, not (row.settings.training and row.settings.training.attack), -steps


def refresh_times(track: str, everything: bool) -> None:
    """Write the times on the board's pages. DVC does not cache them, so a board from its cache lacks them."""
    shown = generate.board_folder(track, everything) / "site" / "times.js"
    measured = [path.stat().st_mtime for path in (WORK / track).glob("*/times/*.json")]
    if not shown.exists() or shown.stat().st_mtime < max(measured, default=0.0):
        which = ["all"] if everything else []
        subprocess.run([sys.executable, "-m", "leaderboard.build", track, *which, "--times"], check=True)


def repro_study(grid: Grid, report: Report) -> None:
    """Bring a study up to date: by DVC its data and the weights from which its networks start, then the study itself.

    Its steps keep their results under their own keys; DVC has no stage for it. Raise a BenchmarkError as `repro` does.
    """
    track = grid.track.name
    prepare(track, grid.sources(), report)
    inputs.write_study(track, grid.id)
    study = [sys.executable, "-m", "benchmark.protocol", "study", track, grid.id]
    if subprocess.run(study, env=dvc.environment()).returncode:
        raise BenchmarkError(f"{grid.id} is not done: its error stands above; the same command goes on from there")


def reproduce(grid: Grid, published: StudyResult) -> tuple[str, list[str]]:
    """Retrain and measure the first cell with its first seed. The published results and those in work/ stay as they are.

    Returns:
        The run, such as "cell all, seed 0", and its fields that differ: none where the sha256 of the weights and all numbers
        are the same. Raise a BenchmarkError where the study asks for other settings than were published.
    """
    from benchmark.studies import results  # imports torch

    if changed := results.changed_settings(published, grid):
        raise BenchmarkError(f"{grid.file} asks for other {', '.join(changed)} than were published; publish it again")
    first = grid.networks()[0]  # it starts from no other network
    assert first.network is not None
    if not (first.data / "data.json").exists():
        inputs.write(grid.track.name)
        # in a fork: the networks' processes see no image of it
        forks.run(partial(protocol.run, "data", grid.track.name))
    row = replace(first, network=replace(first.network, study=f"{grid.id}-check"))
    inputs.write_row(row)
    for step in protocol.plan(row):
        step.execute(again=True)
    retrained = results.run_of(row)
    for folder in (row.folder, row.inputs, row.times):
        shutil.rmtree(folder.parent)
    (before,) = [run for run in published.runs if (run.cell, run.seed) == (retrained.cell, retrained.seed)]
    differ = [name for name in type(before).model_fields if getattr(before, name) != getattr(retrained, name)]
    return f"cell {retrained.cell}, seed {retrained.seed}", differ


def _page(track: str, boards: Sequence[Path]) -> Path:
    return generate.board_folder(track, generate.board_file(track, True) in boards) / "site" / "index.html"


def _file(row: Row) -> Path:
    return generate.row_file(row.track.name, row.name)
