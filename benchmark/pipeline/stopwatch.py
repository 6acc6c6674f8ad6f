"""Seconds of short runs, and the memory that a process of its own needs for them."""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Generic, TypeVar

import psutil
import torch
from torch import nn

from benchmark.runtime.errors import BenchmarkError

T = TypeVar("T")
LEAST, MOST, ENOUGH = 3, 40, 1.0  # runs, and seconds after which no more are begun
CPU_CLOCK = 2  # of a process, in the number of its clock: man 3 clock_getcpuclockid
WARM = 3  # calls of an attack that come before those that count
UNIT = 1 if sys.platform == "darwin" else 1024  # bytes, of ru_maxrss


@dataclass(frozen=True)
class Clock:
    """Seconds of a core that this process and `processes` compute, whatever else the machine does meanwhile; where several
    threads or a GPU compute, and `processes` is None, seconds that pass.
    """

    processes: tuple[int, ...] | None

    @classmethod
    def of(cls, device: torch.device, alone: bool = False) -> Clock:
        """For work on this device, by this process and those that it has started; `alone`: it has started none."""
        if device.type != "cpu" or torch.get_num_threads() > 1 or not sys.platform.startswith("linux"):
            return cls(None)
        return cls(() if alone else tuple(child.pid for child in psutil.Process().children()))

    def now(self) -> float:
        if self.processes is None:
            return time.perf_counter()
        others = sum(time.clock_gettime((~process << 3) | CPU_CLOCK) for process in self.processes)
        return time.process_time() + others

    def seconds(self, run: Callable[[], object]) -> float:
        """Of one run."""
        started = self.now()
        run()
        return self.now() - started

    def median(self, run: Callable[[], object], least: int = LEAST) -> float:
        """Of several runs after one that warms up."""
        run()
        taken: list[float] = []
        while len(taken) < least or (len(taken) < MOST and sum(taken) < ENOUGH):
            taken.append(self.seconds(run))
        return statistics.median(taken)


class Enough(Exception):
    """An attack has asked as often as was to be seen."""


class Timed(nn.Module):
    """A model that notes when it is asked about more images than one, and stops an attack that was seen for long enough.
    Between two calls lies all that a step costs: the model's passes and the attack's own work.
    """

    def __init__(self, model: nn.Module, clock: Clock) -> None:
        super().__init__()
        self.model, self.clock = model, clock
        self.begun: list[float] = []
        self.eval()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if len(images) > 1:
            self.begun.append(self.clock.now())
            seen = len(self.begun) - 1 - WARM
            if seen >= 2 * LEAST and seen % 2 == 0 and (seen >= MOST or self.begun[-1] - self.begun[WARM] > ENOUGH):
                raise Enough
        return self.model(images)

    def seconds(self) -> float:
        """A call, on average over pairs of them: some attacks ask with and without a gradient in turn."""
        first = min(WARM, max(len(self.begun) - 3, 0))
        count = len(self.begun) - 1 - first
        return (self.begun[-1] - self.begun[first]) / count if count > 0 else 0.0


def in_a_process(work: Callable[[], T]) -> Weighed[T]:
    """What `work` returns in a fork of this process, which computes nothing itself, and what it needs of memory.

    Raises:
        BenchmarkError: what it raised, or that it ended, perhaps for want of memory.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(work, theirs), daemon=True)
    sys.stdout.flush()
    process.start()
    theirs.close()
    try:
        found = ours.recv()
    except EOFError:
        process.join()
        raise BenchmarkError(f"its process ended (status {process.exitcode}), perhaps for want of memory") from None
    process.join()
    if isinstance(found, BaseException):
        raise found
    return Weighed(*found)


class Weighed(Generic[T]):
    """What a process returned, and its peak memory in bytes, that of the processes that it started with it."""

    def __init__(self, value: T, memory: int) -> None:
        self.value, self.memory = value, memory


def _work(work: Callable[[], Any], connection: Connection) -> None:
    """In the fork. What is shared with the process that it comes from is counted once."""
    shared = resident()
    try:
        found = work()
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * UNIT
        others = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * UNIT
        connection.send((found, own + max(0, others - shared)))
    except BenchmarkError as error:
        connection.send(BenchmarkError(str(error)))
    except Exception as error:  # whatever the row's code raises; a torch error need not be one that can be sent
        connection.send(BenchmarkError(f"{type(error).__name__}: {' '.join(str(error).split())}"))


def resident() -> int:
    """Bytes of this process that are in memory now; 0 where the machine does not say."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * resource.getpagesize() if statm.exists() else 0
