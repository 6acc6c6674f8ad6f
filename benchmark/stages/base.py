"""What a stage of a row is, and what all of them share: lock, key, clock, resume, outputs.

A stage is one file of this folder that ends in `stage = <Its class>()`; the pipeline, `rvb stage` and the Record find it
there (catalogue.py). It says where it applies, what it reads and which settings and components its result depends on;
that is written to its inputs file (benchmark/pipeline/inputs.py), on which DVC makes it depend and which names its
partial work. It computes in `run`, and imports there what is slow to import: these files are read to plan a pipeline too.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from benchmark.loading.rows import Row, load_row
from benchmark.loading.run_settings import computes_on, gpus_of
from benchmark.runtime import arithmetic, code, files, scratch
from benchmark.runtime.clock import BLOCKS, SECONDS, Clock
from benchmark.runtime.environment import environment
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import WORK

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Outcome:
    """What a stage leaves.

    Attributes:
        columns: evidence by column, one value an image, (n,) each.
        fields: what it adds to the Record, as JSON values. Lists of objects that several stages give are joined, objects
            merged, anything else must be the same in all. A field that Record does not have stands in its `measured`.
        images: (n, c, h, w) float32 images that the Record keeps, by attack.
        published: files that stand beside the Record, by path.
        files: what later stages read, by path.
        summary: one line for people.
    """

    columns: Mapping[str, torch.Tensor] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    images: Mapping[str, torch.Tensor] = field(default_factory=dict)
    published: Mapping[str, bytes] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    summary: str = ""


@dataclass(frozen=True)
class Work:
    """A stage at work on a row: `scratch` is a folder of its own, which a kill leaves for the next run. What stands in its
    folder `blocks` speaks of some images each, and may have been computed elsewhere.
    """

    row: Row
    name: str
    settings: Mapping[str, Any]
    reads: tuple[Path, ...]
    scratch: Path
    clock: Clock

    @property
    def blocks(self) -> Path:
        return self.scratch / BLOCKS

    def say(self, text: str) -> None:
        """One line of progress; the time so far is kept too."""
        self.clock.lap()
        print(f"{self.row.name}: {text}", flush=True)


class Stage(ABC):
    """One kind of work on a row."""

    subject: ClassVar[str] = "row"  # what it works on
    name: ClassVar[str]  # of its file, and of what it does on a row unless `names` says otherwise
    order: ClassVar[int]  # among the stages of a row; evidence is merged in this order
    several: ClassVar[bool] = False  # whether what it does on a row is called `<name>-<what>`
    typical_seconds: ClassVar[float] = 5  # where none are known yet: what takes longest starts first

    @abstractmethod
    def applies(self, row: Row) -> bool: ...

    def names(self, row: Row) -> list[str]:
        """What it does on the row, in order: `<name>`, or several of `<name>-<what>`."""
        return [self.name] if self.applies(row) else []

    def refuse(self, row: Row, name: str) -> BenchmarkError:
        """Why it does not apply, with what to do."""
        return BenchmarkError(f"{row.name} has no stage {name} on {row.track.name}")

    def folder(self, row: Row, name: str) -> Path:
        """Where its outputs stand."""
        return row.folder / name

    def reads(self, row: Row, name: str, earlier: Sequence[Path]) -> list[Path]:
        """Files and folders that it reads, of `earlier` outputs of the row (their folders, in order) and others."""
        return [row.data, row.weights]

    @abstractmethod
    def settings(self, row: Row, name: str) -> dict[str, Any]:
        """All settings that its result depends on, with their defaults, as JSON values."""

    def components(self, row: Row, name: str) -> list[Path]:
        """Files of code that it finds by name."""
        return row.method_files

    def versions(self) -> dict[str, str]:
        """Packages that partial work must not outlive."""
        return {"torch": version("torch")}

    @abstractmethod
    def run(self, work: Work) -> Outcome: ...

    def parts(self, row: Row, name: str, most: int) -> list[range]:
        """Its images, cut into parts of at most `most` where it can be, which `run_part` works on; none where it cannot."""
        return []

    def run_part(self, work: Work, part: range) -> None:
        """Leaves in `work.blocks` what `run` finds there and does not compute again."""
        raise BenchmarkError(f"{work.name} is not cut by images")

    def execute(self, name: str, track: str, row_name: str, part: str = "") -> None:
        """Runs on one row, or goes on where a killed process stopped; writes `folder` and the times beside it.

        Args:
            part: `<first>-<end>`: works on these images alone and leaves what it found in `part_folder`.

        Raises:
            BenchmarkError: it does not apply, what it reads is missing, or its inputs file is of other settings.
        """
        row = load_row(track, row_name)
        if name not in self.names(row):
            raise self.refuse(row, name)
        inputs = files.read_json(inputs_file(track, row.name, name))
        settings = self.settings(row, name)
        if inputs["settings"] != settings or inputs["arithmetic"] != arithmetic.in_force():
            raise BenchmarkError(f"{row.name}: its settings changed just now; run the same command again")
        reads = tuple(Path(path) for path in inputs["reads"])
        for path in reads:
            _check_whole(path)
        key = self.identity(row, name)
        place, folder = (f"{name}@{part}", part_folder(row, name, part)) if part else (name, self.folder(row, name))
        with scratch.locked(f"{track}/{row.name}/{place}", key, folder) as kept:
            if kept is None:
                return
            work = Work(row, name, settings, reads, kept, Clock(kept))
            if part:
                self.run_part(work, _range(part))
                seconds = work.clock.cost(gpus_of(name)) | {"device": computes_on(name)}
                files.write_json(work.blocks / SECONDS.replace("*", part), seconds)
                files.put_folder(work.blocks, folder)
                return
            outcome = self.run(work)
            _check_unchanged(row, name, inputs)
            _write(outcome, kept / "out", code.combined(inputs["code"]))
            files.put_folder(kept / "out", folder)
            seconds = work.clock.cost(gpus_of(name)) | {"device": computes_on(name)} | work.clock.of_parts()
            files.write_json(row.folder / "times" / f"{name}.json", seconds)
        if outcome.summary:
            print(f"{row.name}: {outcome.summary}", flush=True)

    def identity(self, row: Row, name: str) -> dict[str, Any]:
        """All that its result depends on, what it reads as it stands here: partial work of the same is gone on with."""
        inputs = files.read_json(inputs_file(row.track.name, row.name, name))
        read = {path: digest(Path(path)) for path in inputs["reads"]}
        return {**inputs, "read": read, "versions": self.versions()}


def part_folder(row: Row, name: str, part: str) -> Path:
    """Where a part of a stage leaves what it found."""
    return row.folder / "parts" / f"{name}@{part}"


def _range(part: str) -> range:
    first, _, end = part.partition("-")
    if not (first.isdigit() and end.isdigit() and int(first) < int(end)):
        raise BenchmarkError(f"{part!r} names no images; give <first>-<end>, such as 0-200")
    return range(int(first), int(end))


def inputs_file(track: str, subject: str, name: str) -> Path:
    """What a stage's result depends on but for earlier outputs: code by file, settings, arithmetic, and what it reads."""
    return WORK / track / "inputs" / subject / f"{name}.json"


def digest(path: Path) -> str:
    """sha256 of a file, or of what a finished folder says of its files; "" where it is missing, as its reader will say."""
    for place in (path, path / "stage.json", path / "data.json"):
        if place.is_file():
            return files.sha256_file(place)
    return ""


def _check_whole(path: Path) -> None:
    """A BenchmarkError for a folder that is missing, or lacks one of its files; a missing file is named by who reads it."""
    lost = [] if path.suffix or path.exists() else [path]
    if (path / "stage.json").exists():
        lost += [path / name for name in files.read_json(path / "stage.json")["sha256"] if not (path / name).exists()]
    elif path.is_dir() and not (path / "data.json").exists():
        lost.append(path / "stage.json")
    if lost:
        raise BenchmarkError(f"{lost[0]} is missing; run `rvb repro` to build it")


def _check_unchanged(row: Row, name: str, inputs: Mapping[str, Any]) -> None:
    """DVC notes inputs when a stage ends: those of another edit than it ran by would make its result pass for today's."""
    now = code.digests(*(Path(path) for path in inputs["code"]))
    if files.read_json(inputs_file(row.track.name, row.name, name)) != inputs or now != inputs["code"]:
        raise BenchmarkError(f"{row.name}: its code or settings changed while {name} ran; run the same command again")


def _write(outcome: Outcome, out: Path, code_sha256: str) -> None:
    """The outputs of a stage, its environment and the digest of its code beside them."""
    import pyarrow.parquet as pq

    from benchmark.runtime.image_table import image_table

    if out.exists():  # of a run that was killed here
        shutil.rmtree(out)
    out.mkdir(parents=True)
    if outcome.columns:
        columns = {name: tensor.cpu().numpy() for name, tensor in outcome.columns.items()}
        pq.write_table(image_table(columns), out / "evidence.parquet")
    if outcome.images:
        from safetensors.torch import save

        files.write(
            out / "images.safetensors", save({k: tensor.cpu().contiguous() for k, tensor in outcome.images.items()})
        )
    for path, data in {**outcome.files, **{f"record/{k}": data for k, data in outcome.published.items()}}.items():
        files.write(out / path, data)
    if outcome.fields:
        files.write_json(out / "fields.json", dict(outcome.fields))
    digests = {p.relative_to(out).as_posix(): files.sha256_file(p) for p in sorted(out.rglob("*")) if p.is_file()}
    files.write_json(out / "stage.json", {"environment": environment(), "code": code_sha256, "sha256": digests})
