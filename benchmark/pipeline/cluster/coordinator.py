"""`rvb repro --engine`: a track's pending stages on many machines, then its board here.

Sources, data and what reads files that git does not hold run here first, and go to the DVC remote. Every other stage is an
order (orders.py), sent once the results that it reads are in the remote. What DVC noted of a stage there is noted in the
lock here at once, so that a coordinator that is killed goes on from there; results themselves come here row by row, and
`dvc repro` closes the run: it finds every stage done and computes nothing.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from benchmark.loading import submissions, tracks
from benchmark.loading.rows import Row
from benchmark.pipeline import dvc, generate, graph, inputs, partial_board
from benchmark.pipeline.cluster import node, pieces, remote, resources, slurm
from benchmark.pipeline.cluster.closing import bringing, check_unedited, close
from benchmark.pipeline.cluster.dispatch import WAITS, Dispatch
from benchmark.pipeline.cluster.engine import Engine
from benchmark.pipeline.cluster.resources import Resources
from benchmark.pipeline.cluster.shipping import shipment, tracked_files
from benchmark.pipeline.cluster.site import Shipment
from benchmark.pipeline.locks import entry_of, mend_locks, mend_rwlock
from benchmark.pipeline.repro import chosen_rows
from benchmark.pipeline.schedule import Task
from benchmark.pipeline.state import State
from benchmark.runtime import scratch
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import WORK
from benchmark.stages.catalogue import Planned

Report = Callable[[str], None]
Watch = Callable[[Dispatch], AbstractContextManager[object]]


def repro(
    track: str,
    start: Callable[[], Engine],
    report: Report,
    names: Sequence[str] = (),
    everything: bool = False,
    keep_going: bool = False,
    watch: Watch | None = None,
) -> None:
    """Brings rows of the track and its board up to date on the machines of an engine.

    Args:
        start: connects to the engine, once all that can be checked without it is checked.

    Raises:
        BenchmarkError: a checkout with edits, no remote or one that cannot be written, a machine of another kind, a stage
            that asks for more than any machine has, another coordinator, or a stage that failed.
    """
    with _alone():
        chosen, boards, sent = _checked(track, names, everything, report)
        needs = _needs(track, chosen)
        with ThreadPoolExecutor(1) as beside:  # both take seconds
            written = beside.submit(inputs.write, track)
            engine, ended = start(), False
        try:
            _check_fits(needs, engine)
            engine.start(sent)
            written.result()
            tasks, failed_here = _prepared(track, chosen, report)
            if tasks:
                (sent_data,) = entry_of(f"{generate.data_file(track)}:data")["outs"]
                _introduce(engine.introduced(sent_data["md5"]), report)
            cut, takes = pieces.cut(tasks, needs)
            with bringing(report) as bring:
                dispatch = Dispatch(engine, cut, takes, graph.reads(track, chosen), report, bring, say_starts=not watch)
                with watch(dispatch) if watch and tasks else nullcontext():
                    failed = failed_here | dispatch.run()
            ended = True
        finally:
            engine.stop(end=not ended)
        check_unedited(track)
        close(track, chosen, boards, failed, keep_going, report)


def repro_by_slurm(
    track: str,
    report: Report,
    names: Sequence[str] = (),
    everything: bool = False,
    keep_going: bool = False,
    dry: bool = False,
) -> None:
    """Takes what job arrays have answered since the last time; sends arrays for what is left, or closes where nothing is.

    Args:
        keep_going: where arrays were sent before, the board of what they made is rendered, and nothing is sent again.
        dry: the scripts are written, and not sent.

    Raises:
        BenchmarkError: as `repro`, or SLURM is not there.
    """
    with _alone():
        chosen, boards, sent = _checked(track, names, everything, report)
        inputs.write(track)
        needs = _needs(track, chosen)
        before, failed = slurm.ended(track), slurm.collect(track, report)
        tasks, failed_here = _prepared(track, chosen, report)
        failed = {pieces.stage_key(key): why for key, why in failed.items()}
        lost = {tasks[key].what.row.name: why for key, why in failed.items() if key in tasks}
        if tasks and not (keep_going and before):
            made = slurm.write(track, *pieces.cut(tasks, needs), graph.reads(track, chosen), sent)
            script = slurm.folder(track) / "submit.sh"
            report(
                f"{len(tasks)} stages in {len(made)} job arrays: bash {script} sends them"
                if dry
                else slurm.submit(track)
            )
            report("once they have ended, run the same command again" + (" without --dry-run" if dry else ""))
            return
        left = {task.what.row.name: "its job did not end" for task in tasks.values()}
        close(track, chosen, boards, failed_here | left | lost, keep_going, report)


def _checked(
    track: str, names: Sequence[str], everything: bool, report: Report
) -> tuple[list[Row], list[Path], Shipment]:
    """What can be known before any machine is asked: rows, boards, and the commit that machines get."""
    mend_rwlock(report)
    mend_locks(report)
    chosen, boards = chosen_rows(track, names, everything)
    if written := generate.stale():
        raise BenchmarkError(
            f"{written[0]} no longer fits the submissions; run `rvb pipeline` and commit what it writes"
        )
    sent = shipment(remote.settings())
    remote.check()
    if boards:
        shutil.rmtree(partial_board.folder(track), ignore_errors=True)
    return chosen, boards, sent


@contextmanager
def _alone() -> Iterator[None]:
    """A BenchmarkError while another coordinator runs in this checkout."""
    scratch.FOLDER.mkdir(parents=True, exist_ok=True)
    with (scratch.FOLDER / "coordinator.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BenchmarkError("another `rvb repro --engine` runs in this checkout; wait for it or end it") from None
        yield


def _needs(track: str, rows: Sequence[Row]) -> dict[str, Resources]:
    """What each stage takes."""
    declared = resources.read()
    owners = {*submissions.names()}
    every = {f"{owner}-{variant}" for owner in owners for variant in submissions.load(owner).variants}
    resources.check_names(declared, {*tracks.names()}, every, owners)
    return {key: resources.resources_of(task.what, declared) for key, task in _all_tasks(track, rows).items()}


def _check_fits(needs: Mapping[str, Resources], engine: Engine) -> None:
    """A BenchmarkError where a stage takes more than any machine has."""
    for wanted in dict.fromkeys(needs.values()):
        if not engine.fits(wanted):
            key = next(key for key, one in needs.items() if one == wanted)
            raise BenchmarkError(
                f"{key} takes {wanted}, more than any machine has; add one, or lower it in {resources.FILE}"
            )


def _all_tasks(track: str, rows: Sequence[Row]) -> dict[str, Task[Planned]]:
    return graph.tasks_of(track, rows, {f"{generate.data_file(track)}:data"})


def _introduce(said: Sequence[Mapping[str, object]], report: Report) -> None:
    """A BenchmarkError for the first machine that cannot take part."""
    own = node.here()
    for one in said:
        if problem := node.problem(one, own, one["asked"], one["answered"]):  # type: ignore[arg-type]
            raise BenchmarkError(problem)
        report(f"{one['host']}: {one['cores']} cores, {one['processor']}, {one['memory']} GiB")


def _prepared(track: str, rows: Sequence[Row], report: Report) -> tuple[dict[str, Task[Planned]], dict[str, str]]:
    """What is left for the machines, once the data and all that needs files of this machine is built and sent; rows of
    which that failed, with the reason.
    """
    for source in graph.foreign_sources(track, rows):
        dvc.run(["repro", "--pull", source], f"{track}-sources", report)
        remote.push(source, report)
    data = f"{generate.data_file(track)}:data"
    state = _state(track, report)
    if state.why(data) or not (WORK / track / "data").exists():
        dvc.run(["repro", "-s", data], f"{track}-data", report)
        state = _state(track, report)
    remote.push(data, report)
    tasks = graph.tasks_of(track, rows, {stage for stage in state.stages if state.why(stage)})
    read = graph.reads(track, rows)
    for earlier in dict.fromkeys(key for task in tasks for key in read[task] if key not in tasks):
        remote.push(earlier, report)  # what was made here may not be there
    return tasks, _run_here(track, rows, tasks, report)


def _run_here(track: str, rows: Sequence[Row], tasks: dict[str, Task[Planned]], report: Report) -> dict[str, str]:
    """Runs, and takes from the tasks, what only this machine can; after a failure, what waits for it too. Why, by row."""
    failed: dict[str, str] = {}
    for key in _here(track, rows, tasks):
        if key not in tasks:
            continue
        row, gone = tasks[key].what.row.name, {key}
        try:
            dvc.run(["repro", "-s", key], f"{track}-here", report, about=row)
            remote.push(key, report)
        except BenchmarkError as error:
            report(f"{row}: failed")
            failed[row] = str(error)
            while more := {other for other in tasks.keys() - gone if tasks[other].after & gone}:
                gone |= more
            for other in sorted(gone):
                failed.setdefault(tasks[other].what.row.name, WAITS)
        for other in gone:
            del tasks[other]
    return failed


def _state(track: str, report: Report) -> State:
    return State(track, lambda digests: remote.find(digests, report))


def _here(track: str, rows: Sequence[Row], tasks: Mapping[str, Task[Planned]]) -> list[str]:
    """Stages that read files which neither git nor a stage holds, such as downloaded weights."""
    tracked = tracked_files()
    written = {task.what.folder for task in _all_tasks(track, rows).values()}
    written |= {WORK / track / "data", *(one.folder for one in graph.foreign(track, rows))}
    found = []
    for key, task in tasks.items():
        own = [path for path in task.what.reads if not written & {path, *path.parents}]
        if any(path.parts[0] != "work" and path.as_posix() not in tracked for path in own):
            found.append(key)
    return found
