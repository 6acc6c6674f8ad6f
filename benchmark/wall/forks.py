"""Forks of this process, each of which ends when this process does."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Mapping
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess

from benchmark.runtime import errors
from benchmark.wall.confinement import die_with_parent

Work = Callable[[], None]


def run(work: Work) -> None:
    """Run `work` in a fork, which prints an error as one line. Exit with the fork's status where it failed."""
    _wait(_start(work))


def run_side_by_side(works: Mapping[str, Work], after: Mapping[str, str], jobs: int) -> None:
    """Run each work in a fork, at most `jobs` at a time. Where one fails, end the others and exit with its status.

    Args:
        works: by name.
        after: by the name of a work, the name of the work that must be done before it.
    """
    waiting, running, done = dict(works), dict[int, tuple[str, ForkProcess]](), set[str]()
    while waiting or running:
        ready = [name for name in waiting if after.get(name) in {None, *done}]
        for name in ready[: jobs - len(running)]:
            process = _start(waiting.pop(name))
            running[process.sentinel] = name, process
        for sentinel in wait(running):
            name, process = running.pop(int(sentinel))  # type: ignore[arg-type]
            try:
                _wait(process)
            except SystemExit:
                for _, other in running.values():
                    other.terminate()
                raise
            done.add(name)
            print(f"{name}: {len(done)} of {len(works)} are done", flush=True)


def _start(work: Work) -> ForkProcess:
    def guarded() -> None:
        die_with_parent()
        errors.run(work)

    process = multiprocessing.get_context("fork").Process(target=guarded)
    process.start()
    return process


def _wait(process: ForkProcess) -> None:
    process.join()
    if status := process.exitcode:
        sys.exit(status if status > 0 else 128 - status)
