"""How this machine holds the code of submissions: what `params.yaml` asks for, and what each process may read and write."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.loading import submissions
from benchmark.loading.rows import Row
from benchmark.loading.run_settings import run_settings
from benchmark.runtime.errors import BenchmarkError
from benchmark.wall.channel import Channel
from benchmark.wall.confinement import Confinement, available, checked, memory_limit
from benchmark.wall.process import Walled, Work

MOST_SAID = 100_000  # messages and lines, of one process


@dataclass(frozen=True)
class Wall:
    """The parts of the wall that are in force; none where code runs as the judge itself does."""

    parts: tuple[str, ...]

    @property
    def stands(self) -> bool:
        return bool(self.parts)

    @property
    def words(self) -> str:
        """As a Record has it."""
        return ", ".join(self.parts) or "none"

    def confinement(
        self,
        read: Iterable[Path],
        write: Iterable[Path] = (),
        *,
        network: bool = False,
        device: str = "cpu",
        among: int = 1,
    ) -> Confinement:
        """For a process that reads and writes these files and folders and computes on this device, one `among` so many, which
        share the memory.
        """
        gpu = device.startswith(("cuda", "auto"))
        return Confinement(tuple(read), tuple(write), network=network, gpu=gpu, memory=memory_limit() // among)

    def process(
        self, row: Row, work: Work, read: Iterable[Path], write: Iterable[Path] = (), *, seconds: float, **rules: Any
    ) -> Walled:
        """One that does `work` with the row's code; `rules` are those of `confinement`."""
        owner = f"submissions/{row.submission.name}"
        return Walled(work, self.confinement(read, write, **rules), self.parts, owner=owner, seconds=seconds)


def wall() -> Wall:
    """The wall that params.yaml asks for.

    Raises:
        BenchmarkError: it asks for a full one, and this machine lacks a part.
    """
    wanted = run_settings().wall
    if wanted == "none":
        return Wall(())
    there = available()
    return Wall(checked(there) if wanted == "full" else there)


def messages(
    work: Work,
    held: Wall,
    owner: str,
    *,
    read: Iterable[Path],
    seconds: float,
    device: str = "cpu",
) -> Iterator[dict[str, Any]]:
    """What `work` sends on its channel, one after another, behind the wall; the last is `{}`, which it sends by itself.

    Args:
        seconds: for all of it, at most.

    Raises:
        BenchmarkError: the process fails, or its code does, or it says more than `MOST_SAID` messages.
    """
    until = time.monotonic() + seconds

    def ended(channel: Channel) -> None:
        work(channel)
        channel.send({})

    confinement = held.confinement(read, device=device)
    with closing(Walled(ended, confinement, held.parts, owner=owner, seconds=seconds)) as walled:
        for _ in range(MOST_SAID):
            if not (message := walled.receive(most=0, seconds=left(until, owner))[0]):
                return
            yield message
        raise too_much(owner)


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


def submission_files(*rows: Row | None) -> list[Path]:
    """The folders of the rows' submissions, and the tracks, which lie in the package.

    Raises:
        BenchmarkError: a folder is a link, which could lead anywhere.
    """
    found = []
    for row in rows:
        if row is not None:
            folder = submissions.FOLDER / row.submission.name
            if folder.is_symlink():
                raise BenchmarkError(f"{folder} is a link; a submission is a folder of its own")
            found.append(folder.absolute())
    return found
