"""The stages of a row, found by where they stand: every file of this folder that ends in `stage = <Its class>()`."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from benchmark.loading.rows import Row, load_row
from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.stages.base import Stage

HERE = Path(__file__).parent


class AnyStage(Protocol):
    """What the stages of rows, of studies and of a track have in common."""

    @property
    def name(self) -> str: ...

    @property
    def subject(self) -> str:
        """What it works on: "row", "study", or "" for the track itself."""

    def execute(self, name: str, track: str, subject: str, /) -> None: ...


@dataclass(frozen=True)
class Planned:
    """What one stage does on a row: `folder` holds its outputs, `reads` are the files and folders that it reads."""

    stage: Stage
    row: Row
    name: str
    folder: Path
    reads: tuple[Path, ...]

    @property
    def entries(self) -> list[Path]:
        """The files from which its code is followed."""
        return [stage_file(self.stage.name), *self.components]

    @property
    def components(self) -> list[Path]:
        return self.stage.components(self.row, self.name)

    @property
    def settings(self) -> dict[str, Any]:
        return self.stage.settings(self.row, self.name)


def stage_file(name: str) -> Path:
    return Path("benchmark/stages") / f"{name}.py"


@cache
def stages() -> dict[str, AnyStage]:
    """Every stage by name: those of rows, of tracks and of studies."""
    modules = [importlib.import_module(f"benchmark.stages.{path.stem}") for path in sorted(HERE.glob("[a-z]*.py"))]
    return {module.stage.name: module.stage for module in modules if hasattr(module, "stage")}


def row_stages() -> list[Stage]:
    """Every stage of rows, in order."""
    found = [stage for stage in stages().values() if isinstance(stage, Stage)]
    return sorted(found, key=lambda stage: (stage.order, stage.name))


def find(name: str) -> AnyStage:
    """The stage that does `name`; a BenchmarkError with the near miss where there is none."""
    kind, _, what = name.partition("-")
    if kind not in stages() or (what and not getattr(stages()[kind], "several", False)):
        raise BenchmarkError(f"unknown stage {name!r}{near_miss(kind, stages())}")
    return stages()[kind]


def plan(row: Row) -> list[Planned]:
    """What the stages do on a row, in order."""
    planned: list[Planned] = []
    for stage in row_stages():
        earlier = [one.folder for one in planned]
        for name in stage.names(row):
            planned.append(Planned(stage, row, name, stage.folder(row, name), tuple(stage.reads(row, name, earlier))))
    return planned


def planned(track: str, row_name: str, name: str) -> Planned:
    """One of them by name.

    Raises:
        BenchmarkError: no stage has this name (the near miss is suggested), or it does not apply to the row.
    """
    row, stage = load_row(track, row_name), find(name)
    for one in plan(row):
        if one.name == name:
            return one
    if not isinstance(stage, Stage):
        raise BenchmarkError(f"stage {name} does not work on rows")
    raise stage.refuse(row, name)
