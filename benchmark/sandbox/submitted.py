"""The code of submissions in a sandbox: what `params.yaml` asks for, and what each process may read and write."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmark.runtime.errors import BenchmarkError
from benchmark.sandbox.channel import Channel
from benchmark.sandbox.confinement import Confinement, memory_limit, required
from benchmark.sandbox.process import Process, Work
from benchmark.specs import submissions
from benchmark.specs.run_settings import run_settings

MOST_SAID = 100_000  # messages and lines, of one process
Hear = Callable[[dict[str, Any]], object]


def in_force() -> tuple[str, ...]:
    """The parts of the sandbox that params.yaml asks for; none where code runs as the evaluator itself does.

    Raises:
        BenchmarkError: it asks for a full one, and this machine lacks a part.
    """
    return required(run_settings().wall)


def in_words(parts: tuple[str, ...]) -> str:
    """As a Record has it."""
    return ", ".join(parts) or "none"


def start(
    work: Work,
    parts: tuple[str, ...],
    *names: str,
    seconds: float,
    read: Iterable[Path] = (),
    write: Iterable[Path] = (),
    device: str = "cpu",
    network: bool = False,
    among: int = 1,
) -> Process:
    """Start a process that does `work` with the code of the submissions named, of which the first answers for it.

    Args:
        seconds: how long an answer may take.
        read: beside the submissions' folders, and the tracks, which lie in the package.
        among: how many processes share the memory.

    Raises:
        BenchmarkError: a submission's folder is a link, which could lead anywhere.
    """
    folders = [submissions.FOLDER / name for name in names]
    for folder in folders:
        if folder.is_symlink():
            raise BenchmarkError(f"{folder} is a link; a submission is a folder of its own")
    rules = Confinement(
        parts, (*folders, *read), tuple(write), network=network, gpu=device.startswith(("cuda", "auto")),
        memory=memory_limit() // among,
    )  # fmt: skip
    return Process(work, rules, owner=f"submissions/{names[0]}", seconds=seconds)


def run(work: Callable[[Hear], object], hear: Hear, *names: str, seconds: float, **rules: Any) -> None:
    """Run `work(send)` in a sandbox, which has so many `seconds` in all, and tell `hear` each message of JSON values that it
    sends. Without a sandbox in params.yaml it runs here. `rules` are those of `start`.

    Raises:
        BenchmarkError: the process fails, or its code does, or it sends more than `MOST_SAID` messages.
    """
    if not (parts := in_force()):
        work(hear)
        return

    def sending(channel: Channel) -> None:
        work(channel.send)
        channel.send({})

    until = time.monotonic() + seconds
    with start(sending, parts, *names, seconds=seconds, **rules) as process:
        for _ in range(MOST_SAID):
            if not (message := process.receive(most=0, seconds=left(until, process.owner))[0]):
                return
            hear(message)
        raise too_much(process.owner)


def left(until: float, owner: str) -> int:
    """Seconds up to a moment of the monotonic clock, rounded up.

    Raises:
        BenchmarkError: it is past.
    """
    if (seconds := until - time.monotonic()) <= 0:
        raise BenchmarkError(f"{owner}: its code does not come to an end in the time that it has")
    return math.ceil(seconds)


def too_much(owner: str) -> BenchmarkError:
    return BenchmarkError(f"{owner}: its code says more than {MOST_SAID:,} things; let it print less")
