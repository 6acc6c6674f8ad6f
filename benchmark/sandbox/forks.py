"""Forks of this process, each of which ends when this process does."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import IO

from benchmark.runtime import errors
from benchmark.sandbox.confinement import die_with_parent

# a file for each core of this machine, locked by the process that computes there
CORE_LOCKS = Path("work/scratch/cores")
INTERRUPTED = 130  # exit status after Ctrl-C, which reaches the forks too
Work = Callable[[], None]


def run(work: Work) -> None:
    """Run `work` in a fork, which prints an error as one line. Exit with the fork's status if it fails."""
    _wait(_start(work))


def run_side_by_side(
    works: Mapping[str, Work], after: Mapping[str, Collection[str]], cores: int, go_on: bool = False
) -> Iterator[str]:
    """Run each work in a fork, as many at a time as cores are free; yield the name of each when it is done.

    All calls in this checkout share the cores. The first work of a call starts even if none is free. If a work fails,
    end the others and exit with its status; with `go_on`, do all that does not come after it, then exit with status 1.

    Args:
        works: by name, in the order in which they start.
        after: by the name of a work, the names of those that must be done before it.
        cores: how many cores there are.
    """
    failed: list[str] = []
    waiting, running, done = dict(works), dict[int, tuple[str, ForkProcess, IO[str] | None]](), set[str]()
    while waiting or running:
        for name in [name for name in waiting if done.issuperset(after.get(name, ()))]:
            if (core := _free_core(cores)) is None and running:
                break
            process = _start(waiting.pop(name))
            running[process.sentinel] = name, process, core
        if not running:  # what waits comes after a work that failed
            break
        for sentinel in wait(running, timeout=1 if waiting else None):  # another call may have freed a core by then
            name, process, core = running.pop(int(sentinel))  # type: ignore[arg-type]
            if core:
                fcntl.flock(core, fcntl.LOCK_UN)  # forks hold the file too
            try:
                _wait(process)
            except SystemExit as error:
                if go_on and error.code != INTERRUPTED:
                    failed.append(name)
                    continue
                for _, other, _ in running.values():
                    other.terminate()
                raise
            done.add(name)
            yield name
    if failed:
        names = ", ".join(failed)
        sys.exit(
            f"error: {len(failed)} of {len(works)} steps failed, see above: {names}; all else that needs none of them is done"
        )


def _free_core(cores: int) -> IO[str] | None:
    """Take a free core, until its file is unlocked or this process and its forks have ended."""
    CORE_LOCKS.mkdir(parents=True, exist_ok=True)
    for core in range(cores):
        file = (CORE_LOCKS / str(core)).open("a")
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        file.close()
    return None


def _start(work: Work) -> ForkProcess:
    def guarded() -> None:
        die_with_parent()
        try:
            errors.run(work)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)

    process = multiprocessing.get_context("fork").Process(target=guarded)
    process.start()
    return process


def _wait(process: ForkProcess) -> None:
    process.join()
    if status := process.exitcode:
        sys.exit(status if status > 0 else 128 - status)
