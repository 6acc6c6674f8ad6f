"""What the engines share: the stages of rows as the generated dvc.yaml files define them, and how a run begins and ends."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import yaml

from benchmark.loading.run_settings import device_of, run_settings
from benchmark.pipeline import dvc, generate, repro
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import WORK

LOCK = WORK / ".coordinator.lock"
Report = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What a run brings up to date. A stage is named by its key, `<dvc.yaml>:<name>`, which is DVC's address of it.

    Args:
        rows: the names of the chosen rows.
        boards: the dvc.yaml files of the boards.
        stages: the stages of the rows, the data and all that they need, as in their dvc.yaml, producers first.
        reads: by key, the stages whose outputs a stage reads.
        stale: the stages that DVC would run, in the same order.
    """

    track: str
    rows: Sequence[str]
    boards: Sequence[Path]
    stages: dict[str, dict[str, Any]]
    reads: dict[str, set[str]]
    stale: list[str]


@contextmanager
def alone() -> Iterator[None]:
    """Hold the lock of this checkout's coordinator; raise BenchmarkError if another process holds it."""
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    with LOCK.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BenchmarkError("another `rvb repro --engine` runs in this checkout; wait for it or end it") from None
        yield


def plan(track: str, names: Sequence[str], everything: bool, pull: bool, report: Report) -> Plan:
    """Prepare the track as `rvb repro` does, the data too, and ask DVC which stages of the rows are stale.

    Args:
        pull: first bring what the DVC remote has of the rows' results.
    """
    rows, boards = repro.chosen_rows(track, names, everything)
    repro.prepare(track, rows, report)
    chosen = [generate.row_file(track, row.name) for row in rows]
    stages, reads = _needed(chosen)
    data = generate.data_file(track).as_posix()
    keys = [key for key in stages if key.split("/")[1] == track and not key.startswith(f"{data}:")]
    if pull and keys:
        dvc.run(["pull", "--force", "--allow-missing", *keys], f"{track}-pull", report)
    changed = dvc.changed_stages(chosen) if keys else set()
    stale: list[str] = []
    for key in keys:
        if key in changed or reads[key] & {*stale}:
            stale.append(key)
    return Plan(track, [row.name for row in rows], boards, stages, reads, stale)


def run(
    waits: dict[str, set[str]],
    submit: Callable[[str], Any],
    ended: Callable[[Sequence[Any]], Iterable[tuple[Any, str]]],
    report: Report,
) -> dict[str, str]:
    """Submit jobs, each once those that it waits for have ended well; return why by row that failed.

    Args:
        waits: by stage or dvc.yaml, those that its job waits for.
        submit: sends the job of one.
        ended: waits until jobs have ended; each with why it failed, "" if it did not.
    """
    running: dict[Any, str] = {}
    failed: dict[str, str] = {}
    while waits or running:
        for name in [name for name, before in waits.items() if not before]:
            del waits[name]
            running[submit(name)] = name
        for job, error in ended([*running]):
            name = running.pop(job)
            report(f"{name}: {'failed' if error else 'done'}")
            gone = [name] if error else []
            if error:
                failed.setdefault(_row(name), error)
            while more := [other for other, before in waits.items() if before & {*gone}]:
                for other in more:
                    del waits[other]
                    failed.setdefault(_row(other), f"reads results of {_row(name)}, which failed")
                gone += more
            for before in waits.values():
                before.discard(name)
    return failed


def close(done: Plan, failed: dict[str, str], report: Report) -> None:
    """Render the boards by plain `dvc repro`; raise BenchmarkError if rows failed, `failed` says why."""
    if failed:
        words = "; ".join(f"{row}: {why}" for row, why in failed.items())
        board = ", so there is no new board" if done.boards else ""
        raise BenchmarkError(f"{len(failed)} of {len(done.rows)} rows failed{board}: {words}")
    repro.close(done.track, done.boards, report)


def needs(key: str) -> tuple[int, str]:
    """Return how many processes compute a stage, each on a core or a GPU of its own, and its device in params.yaml."""
    stage = key.rpartition(":")[2]
    return run_settings().train.processes if stage == "train" else 1, device_of(stage)


def outs(stage: dict[str, Any]) -> list[str]:
    """Return the outputs of a stage that DVC caches."""
    named = [next(iter(out.items())) if isinstance(out, dict) else (out, {}) for out in stage.get("outs", ())]
    return [path for path, options in named if options.get("cache", True)]


def with_parents(path: str) -> set[str]:
    """Return a path and the folders that it lies in."""
    return {path, *(parent.as_posix() for parent in Path(path).parents)}


def _row(name: str) -> str:
    return Path(name).parent.name


def _needed(files: Sequence[Path]) -> tuple[dict[str, dict[str, Any]], dict[str, set[str]]]:
    """Return the stages of the files and all stages that they need, producers first, and what each reads."""
    known: dict[Path, dict[str, dict[str, Any]]] = {}
    queue = [*files]
    while queue:
        file = queue.pop()
        if file not in known and file.exists():
            content = yaml.load(file.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
            known[file] = {f"{file.as_posix()}:{name}": stage for name, stage in content["stages"].items()}
            deps = [(*Path(dep).parts, "", "")[1:3] for stage in known[file].values() for dep in stage.get("deps", ())]
            queue += [generate.row_file(track, name) for track, name in deps if name]
            queue += [generate.data_file(track) for track, name in deps if name == "data"]
    stages = {key: stage for own in known.values() for key, stage in own.items()}
    writers = {out: key for key, stage in stages.items() for out in outs(stage)}
    reads: dict[str, set[str]] = {}
    left = [key for file in files for key in known[file]]
    while left:
        key = left.pop()
        paths = set().union(*(with_parents(dep) for dep in stages[key].get("deps", ())))
        reads[key] = {writers[path] for path in paths & writers.keys()}
        left += reads[key] - reads.keys()
    graph = {key: sorted(reads[key]) for key in stages if key in reads}  # in the order of the files, as in locks
    return {key: stages[key] for key in TopologicalSorter(graph).static_order()}, reads
