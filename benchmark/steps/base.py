"""What a step of a row is, and what all of them share: key, lock, clock, resume, outputs.

A step is one file of this folder that ends in `step = <Its class>()`, and a line of the table in protocol.py. It says where
it applies, what it reads and which settings and components its result depends on; that is written to its inputs file
(benchmark/pipeline/inputs.py), on which DVC makes its stage depend, and which with what it reads is its result's key. It
computes in `run`, and imports there what is slow to import: these files are read to plan a pipeline too.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from benchmark.loading.rows import Row
from benchmark.loading.run_settings import computes_on, gpus_of
from benchmark.runtime import arithmetic, code, files, scratch
from benchmark.runtime.clock import BLOCKS, Clock
from benchmark.runtime.environment import environment
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import WORK

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import torch

T = TypeVar("T")


def image_table(columns: Mapping[str, np.ndarray]) -> pa.Table:
    """A line an image; a column (m,) shorter than others (n,) speaks of the first images, and has nulls after those."""
    import pyarrow as pa

    known = {name: pa.array(values) for name, values in columns.items()}
    lines = max(map(len, known.values()))
    return pa.table({n: pa.concat_arrays([v, pa.nulls(lines - len(v), v.type)]) for n, v in known.items()})


@dataclass(frozen=True)
class Outcome:
    """What a step leaves.

    Attributes:
        columns: evidence by column, one value an image, (n,) each.
        fields: what it adds to the Record, as JSON values. Lists of objects that several steps give are joined, objects
            merged, anything else must be the same in all. A field that Record does not have stands in its `measured`.
        images: (n, c, h, w) float32 images that the Record keeps, by attack.
        published: files that stand beside the Record, by path.
        files: what later steps read, by path.
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
    """A step at work on a row: `scratch` is a folder of its own, which a kill leaves for the next run; what stands in its
    folder `blocks` speaks of some images each.
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


def needed(value: T | None) -> T:
    """A setting that is there, since the step applies."""
    assert value is not None
    return value


class Step(ABC):
    """One kind of work on a row."""

    name: ClassVar[str]  # of its file, and of what it does on a row unless `names` says otherwise
    several: ClassVar[bool] = False  # whether what it does on a row is called `<name>-<what>`
    refusal: ClassVar[str] = "{row} has no step {step} on {track}"  # where it does not apply, with what to do

    @abstractmethod
    def applies(self, row: Row) -> bool: ...

    def names(self, row: Row) -> list[str]:
        """What it does on the row, in order: `<name>`, or several of `<name>-<what>`."""
        return [self.name] if self.applies(row) else []

    def refuse(self, row: Row, name: str) -> BenchmarkError:
        """Why it does not apply, with what to do."""
        return BenchmarkError(self.refusal.format(row=row.name, step=name, track=row.track.name))

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

    def execute(self, name: str, row: Row, again: bool = False) -> None:
        """Runs on one row, or goes on where a killed process stopped; writes `folder` and the times beside it.

        Args:
            again: even where a result of the same key stands, which is else left as it is.

        Raises:
            BenchmarkError: it does not apply, what it reads is missing, or its inputs file is of other settings.
        """
        if name not in self.names(row):
            raise self.refuse(row, name)
        inputs = files.read_json(row.inputs / f"{name}.json")
        settings = self.settings(row, name)
        if inputs["settings"] != settings or inputs["arithmetic"] != arithmetic.in_force():
            raise BenchmarkError(f"{row.name}: its settings changed just now; run the same command again")
        reads = tuple(Path(path) for path in inputs["reads"])
        for path in reads:
            _check_whole(path)
        identity, folder = self.identity(row, name), self.folder(row, name)
        key = scratch.key(identity)
        with scratch.locked(f"{row.home.relative_to(WORK)}/{row.name}/{name}", identity) as kept:
            if not again:
                if stands(folder, key):
                    print(f"{row.name}: {name} is kept, nothing that it depends on has changed", flush=True)
                    return
                # of another key: no later step may read it, should this one fail
                shutil.rmtree(folder, ignore_errors=True)
            work = Work(row, name, settings, reads, kept, Clock(kept))
            outcome = self.run(work)
            _check_unchanged(row, name, inputs)
            _write(outcome, kept / "out", code.combined(inputs["code"]), key)
            files.put_folder(kept / "out", folder)
            seconds = work.clock.cost(gpus_of(name)) | {"device": computes_on(name)}
            files.write_json(row.times / f"{name}.json", seconds)
        if outcome.summary:
            print(f"{row.name}: {outcome.summary}", flush=True)

    def identity(self, row: Row, name: str) -> dict[str, Any]:
        """All that its result depends on, what it reads as it stands here."""
        inputs = files.read_json(row.inputs / f"{name}.json")
        read = {path: digest(Path(path)) for path in inputs["reads"]}
        return {**inputs, "read": read, "versions": self.versions()}


def digest(path: Path) -> str:
    """sha256 of a file, or of what a finished folder says of its files; "" where it is missing, as its reader will say."""
    for place in (path, path / "stage.json", path / "data.json"):
        if place.is_file():
            return files.sha256_file(place)
    return ""


def stands(folder: Path, key: str) -> bool:
    """Whether a step's folder holds, whole, the result of this key."""
    about = folder / "stage.json"
    if not about.exists():
        return False
    said = files.read_json(about)
    return said.get("key") == key and all(
        (folder / name).is_file() and files.sha256_file(folder / name) == digest
        for name, digest in said["sha256"].items()
    )


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
    """DVC notes inputs when its stage ends: those of another edit than it ran by would make its result pass for today's."""
    now = code.digests(*(Path(path) for path in inputs["code"]))
    if files.read_json(row.inputs / f"{name}.json") != inputs or now != inputs["code"]:
        raise BenchmarkError(f"{row.name}: its code or settings changed while {name} ran; run the same command again")


def _write(outcome: Outcome, out: Path, code_sha256: str, key: str) -> None:
    """The outputs of a step; beside them its environment, the digest of its code, and its key."""
    import pyarrow.parquet as pq

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
    about = {"environment": environment(), "code": code_sha256, "key": key, "sha256": digests}
    files.write_json(out / "stage.json", about)
