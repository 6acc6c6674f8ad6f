"""What one order does: a stage of a row, or its work on some of the images, so that one large row scales as many rows do.

Parts leave what they found in the DVC remote, beside its results; the stage itself takes it up in place of computing it, and
so writes the same bytes as if it had done all by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmark.loading.rows import Row
from benchmark.pipeline.cluster.resources import Resources
from benchmark.pipeline.schedule import Task
from benchmark.stages.catalogue import Planned

REST = 0.1  # of a stage's seconds, where its parts are done


@dataclass(frozen=True)
class Piece:
    """`part` is `<first>-<end>` of the images, "" for the whole stage, which takes up its `parts`."""

    stage: Planned
    part: str = ""
    parts: tuple[str, ...] = ()

    @property
    def row(self) -> Row:
        return self.stage.row

    @property
    def name(self) -> str:
        return f"{self.stage.name}@{self.part}" if self.part else self.stage.name


def stage_key(key: str) -> str:
    """The stage of a part; a stage itself."""
    return key.partition("@")[0]


def cut(
    tasks: Mapping[str, Task[Planned]], needs: Mapping[str, Resources]
) -> tuple[dict[str, Task[Piece]], dict[str, Resources]]:
    """The tasks with the parts of those whose resources ask for it before them, and what each takes.

    A part's key is its stage's with `@<first>-<end>` behind it.
    """
    found: dict[str, Task[Piece]] = {}
    takes: dict[str, Resources] = {}
    for key, task in tasks.items():
        one, most = task.what, needs[key].images
        ranges = one.stage.parts(one.row, one.name, most) if most else []
        parts = {f"{key}@{part.start}-{part.stop}": part for part in ranges}
        images = sum(map(len, ranges))
        for name, part in parts.items():
            seconds = task.seconds * len(part) / images
            found[name] = Task(Piece(one, name.rpartition("@")[2]), task.after, seconds, task.known)
        whole = Piece(one, parts=tuple(name.rpartition("@")[2] for name in parts))
        found[key] = Task(whole, task.after | parts.keys(), task.seconds * REST if parts else task.seconds, task.known)
        takes |= dict.fromkeys([*parts, key], needs[key])
    return found, takes
