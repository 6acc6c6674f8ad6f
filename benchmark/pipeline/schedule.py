"""Stages side by side: each as soon as what it reads is there, those first on which most still waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from benchmark.runtime.errors import BenchmarkError

T = TypeVar("T")


@dataclass(frozen=True)
class Task(Generic[T]):
    """`after` are the keys of the tasks that it waits for; `seconds` how long it may take, a mere guess unless `known`."""

    what: T
    after: frozenset[str]
    seconds: float
    known: bool = True


def urgency(tasks: Mapping[str, Task[T]]) -> dict[str, float]:
    """Seconds from the start of each task to the end of all that waits for it."""
    waiting = waiting_for(tasks)
    found: dict[str, float] = {}

    def of(key: str) -> float:
        if key not in found:
            found[key] = tasks[key].seconds + max(map(of, waiting[key]), default=0.0)
        return found[key]

    for key in tasks:
        of(key)
    return found


def waiting_for(tasks: Mapping[str, Task[T]]) -> dict[str, list[str]]:
    """By task: those that wait for it."""
    found: dict[str, list[str]] = {key: [] for key in tasks}
    for key, task in tasks.items():
        for earlier in task.after & tasks.keys():
            found[earlier].append(key)
    return found


def run(tasks: Mapping[str, Task[T]], jobs: int, work: Callable[[str, T], None]) -> list[BenchmarkError]:
    """Runs every task, at most `jobs` at a time; those that wait for a failed one are left out. The failures, in order.

    Any other exception, an interrupt among them, starts no further task and is raised once those that run have ended.
    """
    first = urgency(tasks)
    waiting = sorted(tasks, key=lambda key: (-first[key], key))
    running: set[str] = set()
    done: set[str] = set()
    failures: list[BenchmarkError] = []
    crashes: list[BaseException] = []
    changed = threading.Condition()

    def next_task() -> str | None:
        """The most urgent task that can run now; waits for one; None when none is left."""
        with changed:
            while True:
                ready = next((key for key in waiting if tasks[key].after & tasks.keys() <= done), None)
                if ready is not None:
                    waiting.remove(ready)
                    running.add(ready)
                    return ready
                if not running:
                    return None
                changed.wait()

    def worker() -> None:
        while (key := next_task()) is not None:
            try:
                work(key, tasks[key].what)
                done.add(key)
            except BenchmarkError as error:
                failures.append(error)
            except BaseException as error:
                crashes.append(error)
                stop()
            finally:
                with changed:
                    running.discard(key)
                    changed.notify_all()

    def stop() -> None:
        with changed:
            waiting.clear()
            changed.notify_all()

    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        try:
            for future in [pool.submit(worker) for _ in range(max(1, jobs))]:
                future.result()
        except BaseException:  # an interrupt
            stop()
            raise
    if crashes:
        raise crashes[0]
    return failures
