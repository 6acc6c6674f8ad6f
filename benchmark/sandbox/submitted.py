"""Processes for submitted code: what `params.yaml` asks for, and what each process may read and write."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmark.runtime.errors import BenchmarkError
from benchmark.sandbox.channel import Channel, Tensors
from benchmark.sandbox.confinement import Confinement, memory_limit, required
from benchmark.sandbox.process import Process, Work
from benchmark.specs import submissions
from benchmark.specs.run_settings import run_settings

MOST_SAID = 100_000  # messages and printed lines of one process
Hear = Callable[[dict[str, Any]], object]


def in_force() -> tuple[str, ...]:
    """Return the parts of the sandbox that params.yaml asks for; none if code runs as the evaluator itself does.

    Raise BenchmarkError if it asks for a full sandbox and this machine lacks a part.
    """
    return required(run_settings().wall)


def in_words(parts: tuple[str, ...]) -> str:
    """Return the parts as a Record lists them."""
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
    """Start a process that does `work` with the code of the named submissions; messages name the first of them.

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


def run(
    work: Callable[[Hear], Tensors | None], hear: Hear, *names: str, seconds: float, most: int = 0, **rules: Any
) -> Tensors:
    """Run `work(send)` in a sandbox and return its tensors; without a sandbox in params.yaml, run it in this process.

    Args:
        work: the function. It sends messages of JSON values, and returns None or tensors by name.
        hear: called with each message.
        seconds: the time that all of it may take.
        most: bytes of the tensors, at most.
        rules: more arguments of `start`.

    Raises:
        BenchmarkError: the process fails, or its code does, or it sends more than `MOST_SAID` messages.
    """
    if not (parts := in_force()):
        return work(hear) or {}

    def sending(channel: Channel) -> None:
        channel.send({}, work(channel.send))

    until = time.monotonic() + seconds
    with start(sending, parts, *names, seconds=seconds, **rules) as process:
        for _ in range(MOST_SAID):
            message, tensors = process.receive(most=most, seconds=left(until, process.owner))
            if not message:
                return tensors
            if tensors:
                raise BenchmarkError(f"{process.owner}: its code returned malformed output")
            hear(message)
        raise too_much(process.owner)


def left(until: float, owner: str) -> int:
    """Return the seconds up to a moment of the monotonic clock, rounded up. Raise BenchmarkError if the moment is past."""
    if (seconds := until - time.monotonic()) <= 0:
        raise BenchmarkError(f"{owner}: its code does not end in the time that it has")
    return math.ceil(seconds)


def too_much(owner: str) -> BenchmarkError:
    return BenchmarkError(f"{owner}: its code sends more than {MOST_SAID:,} messages or printed lines; let it send less")
