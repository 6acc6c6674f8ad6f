"""How far a run is: `Stage train of Wong2020Fast-linf, 3 of 8, about 2 min left`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from threading import Lock

from benchmark.pipeline import schedule
from benchmark.pipeline.schedule import Task
from benchmark.stages.catalogue import Planned


class Progress:
    """Stages as they start and end, from several threads; what is left goes by the seconds of the tasks."""

    def __init__(
        self,
        tasks: Mapping[str, Task[Planned]],
        jobs: int,
        report: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`report` gets a line whenever a stage starts."""
        self._tasks, self._jobs, self._report, self._clock = tasks, max(1, jobs), report, clock
        self._urgency = schedule.urgency(tasks)
        self._left = {*tasks}
        self._total = len(tasks)
        self._running: dict[str, float] = {}
        self._count: dict[str, int] = {}
        self._lock = Lock()

    def start(self, key: str) -> None:
        with self._lock:
            self._running[key] = self._clock()
            self._count[key] = len(self._count) + 1
            if self._report:
                self._report(self._line(key))

    def end(self, key: str, failed: bool = False) -> None:
        """After a failure, what waits for the stage does not run and is no longer counted."""
        with self._lock:
            self._running.pop(key)
            gone = {key}
            while failed and (more := {k for k in self._left - gone if self._tasks[k].after & gone}):
                gone |= more
            self._left -= gone
            self._total -= len(gone) - 1

    def line(self) -> str:
        """The line of the stage that started last among those that run; "" where none does."""
        with self._lock:
            return self._line([*self._running][-1]) if self._running else ""

    def seconds_left(self) -> float:
        """At least what one stage after another takes on the longest way, and what all take on the jobs."""
        with self._lock:
            return self._seconds_left()

    def _line(self, key: str) -> str:
        planned = self._tasks[key].what
        place = f"Stage {planned.name} of {planned.row.name}, {self._count[key]} of {self._total}"
        return f"{place}, {left_words(self._seconds_left(), self._known())}"

    def known(self) -> bool:
        """Whether what is left has run here before, or is of digits: else `seconds_left` is a guess that may be far off."""
        with self._lock:
            return self._known()

    def _known(self) -> bool:
        return all(self._tasks[key].known for key in self._left)

    def _seconds_left(self) -> float:
        now = self._clock()
        done = {key: min(now - since, self._tasks[key].seconds) for key, since in self._running.items()}
        longest = max((self._urgency[key] - done.get(key, 0.0) for key in self._left), default=0.0)
        work = sum(self._tasks[key].seconds - done.get(key, 0.0) for key in self._left)
        return max(longest, work / self._jobs)


def left_words(seconds: float, known: bool = True) -> str:
    if not known:
        return "time left unknown (rvb plan estimates it)"
    if seconds <= 0:
        return "longer than expected"
    return "a few seconds left" if seconds < 10 else f"about {duration(seconds)} left"


def duration(seconds: float) -> str:
    """In the unit that fits: `40 s`, `3 min`, `2.5 h`."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
