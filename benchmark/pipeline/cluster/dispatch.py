"""Sends orders as soon as what they read is there, the longest way first, and notes the answers."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmark.loading.rows import Row
from benchmark.pipeline import dvc, schedule
from benchmark.pipeline.cluster import orders
from benchmark.pipeline.cluster.engine import Arrived, Engine
from benchmark.pipeline.cluster.orders import Answer
from benchmark.pipeline.cluster.pieces import Piece, stage_key
from benchmark.pipeline.cluster.resources import Resources
from benchmark.pipeline.locks import put_entries
from benchmark.pipeline.schedule import Task
from benchmark.runtime import files

TRIES = 3  # of a stage whose worker or machine was lost
AHEAD = 1.25  # orders sent for each that can run, so that no place waits for the next one
POLL = 0.5  # seconds
COUNT = 10.0  # seconds after which places are counted anew
WAITS = "starts from the weights of a row that failed"
Report = Callable[[str], None]


@dataclass(frozen=True)
class Running:
    """A stage that was sent: `machine` is "" until one has begun with it; since when, on this machine's clock."""

    key: str
    machine: str
    since: float


class Dispatch:
    """One run over the stages that are left."""

    def __init__(
        self,
        engine: Engine,
        tasks: Mapping[str, Task[Piece]],
        needs: Mapping[str, Resources],
        reads: Mapping[str, Sequence[str]],
        report: Report,
        ended: Callable[[Row], None] = lambda row: None,
        clock: Callable[[], float] = time.monotonic,
        say_starts: bool = True,
    ) -> None:
        """`ended` hears of each row of which every stage is done."""
        self.tasks, self.engine = tasks, engine
        self.sent: dict[str, Running] = {}
        self.done: set[str] = set()
        self.seconds: dict[str, float] = {}  # by kind of device
        self._needs, self._reads, self._report, self._ended, self._clock = needs, reads, report, ended, clock
        self._say_starts = say_starts
        self._waiting = schedule.waiting_for(tasks)
        self._open = {key: len(task.after & tasks.keys()) for key, task in tasks.items()}
        self.urgency = schedule.urgency(tasks)
        self._ready: dict[Resources, list[tuple[float, str]]] = {}
        self._places: dict[Resources, int] = {}
        self._counted = clock()
        self._roomless: set[Resources] = set()
        self._out: Counter[Resources] = Counter()
        self._tries: Counter[str] = Counter()
        self._left = Counter(task.what.row.name for task in tasks.values())
        self._failed: dict[str, str] = {}
        for key, count in self._open.items():
            if not count:
                self._offer(key)

    def run(self) -> dict[str, str]:
        """Carries out every stage that can be; by row that is not done then, in order: why."""
        while True:
            self._send()
            if not self.sent:
                break
            arrived = self.engine.wait(POLL)
            for key, machine in self.engine.started().items():
                if key in self.sent:
                    self.sent[key] = Running(key, machine, self._clock())
                    if self._say_starts:
                        self._report(f"{self._label(key)} runs on {machine}, {len(self.done) + 1} of {len(self.tasks)}")
            for one in arrived:
                self._take(one)
        left = {task.what.row.name: None for key, task in self.tasks.items() if key not in self.done}
        return {name: self._failed.get(name, WAITS) for name in left}

    def _offer(self, key: str) -> None:
        heapq.heappush(self._ready.setdefault(self._needs[key], []), (-self.urgency[key], key))

    def _send(self) -> None:
        if self._clock() - self._counted >= COUNT:  # machines come and go
            self._counted = self._clock()
            self._places.clear()
        for needs, ready in self._ready.items():
            if (ready or self._out[needs]) and needs not in self._places:
                self._places[needs] = self.engine.places(needs)
                self._say_room(needs)
            while ready and self._out[needs] < AHEAD * max(1, self._places[needs]) + 1:
                _, key = heapq.heappop(ready)
                self._out[needs] += 1
                self._tries[key] += 1
                self.sent[key] = Running(key, "", self._clock())
                piece = self.tasks[key].what
                reads = self._reads[stage_key(key)]
                self.engine.submit(orders.order(key, piece, reads), needs)

    def _say_room(self, needs: Resources) -> None:
        """Says once that what was sent waits for a machine that can take it, since the last such one has gone."""
        if self._places[needs]:
            self._roomless.discard(needs)
        elif needs not in self._roomless:
            self._roomless.add(needs)
            self._report(f"no machine that is there has {needs}; stages that take it wait for one")

    def _take(self, arrived: Arrived) -> None:
        key, answer = arrived.key, arrived.answer
        del self.sent[key]
        self._out[self._needs[key]] -= 1
        self._keep_log(key, answer)
        if answer.error:
            self._take_failure(key, answer)
            return
        self.seconds[answer.device] = self.seconds.get(answer.device, 0.0) + answer.seconds
        one = self.tasks[key].what
        if not one.part:
            put_entries({key: answer.entry})
        if answer.times:
            files.write(one.row.folder / "times" / f"{one.name}.json", answer.times)
        self.done.add(key)
        for waiting in self._waiting[key]:
            self._open[waiting] -= 1
            if not self._open[waiting]:
                self._offer(waiting)
        self._left[one.row.name] -= 1
        if not self._left[one.row.name]:
            self._report(f"{one.row.name}: done")
            self._ended(one.row)

    def _take_failure(self, key: str, answer: Answer) -> None:
        row = self.tasks[key].what.row.name
        if answer.lost and self._tries[key] < TRIES:
            self._report(f"{self._label(key)}: {answer.error}; tried again, {TRIES - self._tries[key]} left")
            self._offer(key)
            return
        again = f" ({TRIES} times)" if answer.lost else ""
        if row not in self._failed:
            self._failed[row] = f"{answer.error}{again} [log: {self._log(key)}]"
            self._report(f"{row}: failed")

    def _label(self, key: str) -> str:
        one = self.tasks[key].what
        return f"{one.row.name}: {one.name}"

    def _log(self, key: str) -> str:
        one = self.tasks[key].what
        return str(dvc.LOGS / f"{one.row.track.name}-{one.row.name}-{one.name}.log")

    def _keep_log(self, key: str, answer: Answer) -> None:
        if answer.log:
            files.write(Path(self._log(key)), answer.log)
