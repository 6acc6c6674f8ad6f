"""What a step of a row is, and what all of them share: key, lock, clock, resume, outputs.

A step is one file of this folder that ends in `step = <Its class>`, and a line of the table in protocol.py. It says where it
applies, what it reads and which settings and components its result depends on; that is written to its inputs file
(benchmark/pipeline/inputs.py), on which DVC makes its stage depend, and which with what it reads is its result's key. It
computes in `run`, and imports there what is slow to import: these files are read to plan a pipeline too.
"""

from __future__ import annotations

import importlib
import shutil
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from benchmark.runtime import arithmetic, code, files, scratch
from benchmark.runtime.clock import BLOCKS, Clock
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.machine import environment
from benchmark.runtime.paths import WORK
from benchmark.specs.rows import Row
from benchmark.specs.run_settings import computes_on, gpus_of

if TYPE_CHECKING:
    import torch

SLOW = ("pyarrow.dataset", "pyarrow.parquet", "safetensors.torch", "scipy.stats", "torch._dynamo")


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
    """A step at work: a kill leaves its folder `scratch` for the next run; what stands in `blocks` there speaks of some
    images each.
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


class Step(ABC):
    """What one kind of work does on a row; each file's class is one kind.

    Attributes:
        name: that of its file, or one of several, `<file>-<what>`.
        earlier: the folders of the row's steps before it, in order.
    """

    declared_in: ClassVar[str] = "track"  # the part of the row by which the step applies, such as track.smoothing
    several: ClassVar[bool] = False  # whether what it does on a row is called `<file>-<what>`
    refusal: ClassVar[str] = "{row} has no step {step} on {track}"  # where it does not apply, with what to do

    def __init__(self, row: Row, name: str, earlier: Sequence[Path] = ()) -> None:
        self.row, self.name, self.earlier = row, name, tuple(earlier)

    @classmethod
    def applies(cls, row: Row) -> bool:
        return bool(attrgetter(cls.declared_in)(row))

    @classmethod
    def names(cls, row: Row) -> list[str]:
        """What it does on the row, in order."""
        return [cls.__module__.rpartition(".")[2]] if cls.applies(row) else []

    @classmethod
    def refuse(cls, row: Row, name: str) -> BenchmarkError:
        """Why it does not apply, with what to do."""
        return BenchmarkError(cls.refusal.format(row=row.name, step=name, track=row.track.name))

    @property
    def what(self) -> str:
        return self.name.partition("-")[2]

    @property
    def declared(self) -> Any:
        """What that part of the row says."""
        return attrgetter(self.declared_in)(self.row)

    @property
    def folder(self) -> Path:
        """Where its outputs stand."""
        return self.row.folder / self.name

    @property
    def inputs(self) -> Path:
        """Its inputs file: code by file, settings, arithmetic, and what it reads."""
        return self.row.inputs / f"{self.name}.json"

    @property
    def reads(self) -> list[Path]:
        """Files and folders that it reads."""
        return [self.row.data, self.row.weights]

    @property
    def settings(self) -> dict[str, Any]:
        """All settings that its result depends on, with their defaults, as JSON values."""
        return {
            "data": self.row.track.data.model_dump(mode="json", exclude={"sha256", "path"}),
            **self.row.settings.model_dump(mode="json", include={"model", self.declared_in.rpartition(".")[2]}),
        }

    @property
    def components(self) -> list[Path]:
        """Files of code that it finds by name."""
        return self.row.method_files

    @property
    def entries(self) -> list[Path]:
        """The files from which its code is followed."""
        return [Path(*type(self).__module__.split(".")).with_suffix(".py"), *self.components]

    @property
    def slow(self) -> list[str]:
        """Modules that take long to import, once for all steps that then run in forks; none of a submission."""
        code = [Path(path).with_suffix("") for path in files.read_json(self.inputs)["code"]]
        own = [path.parts for path in code if path.parts[0] == "benchmark" and path.name != "__init__"]
        return [*SLOW, *map(".".join, own)]

    def versions(self) -> dict[str, str]:
        """Packages that partial work must not outlive."""
        return {"torch": version("torch")}

    @abstractmethod
    def run(self, work: Work) -> Outcome: ...

    def execute(self, again: bool = False) -> None:
        """Run, or go on where a killed process stopped; write `folder` and the times beside it.

        Args:
            again: even where a result of the same key stands, which is else left as it is.

        Raises:
            BenchmarkError: what it reads is missing, or its inputs file is of other settings.
        """
        row, name, inputs = self.row, self.name, files.read_json(self.inputs)
        if inputs["settings"] != self.settings or inputs["arithmetic"] != arithmetic.in_force():
            raise BenchmarkError(f"{row.name}: its settings changed just now; run the same command again")
        reads = tuple(map(Path, inputs["reads"]))
        for path in reads:
            _check_whole(path)
        identity = self.identity()
        key = scratch.key(identity)
        with scratch.locked(f"{row.home.relative_to(WORK)}/{row.name}/{name}", identity) as kept:
            if not again:
                if stands(self.folder, key):
                    print(f"{row.name}: {name} is kept, nothing that it depends on has changed", flush=True)
                    return
                # of another key: no later step may read it, should this one fail
                shutil.rmtree(self.folder, ignore_errors=True)
            work = Work(row, name, inputs["settings"], reads, kept, Clock(kept))
            outcome = self.run(work)
            # DVC notes inputs when its stage ends: those of another edit would make this result pass for theirs
            now = code.digests(*map(Path, inputs["code"]))
            if files.read_json(self.inputs) != inputs or now != inputs["code"]:
                raise BenchmarkError(
                    f"{row.name}: its code or settings changed while {name} ran; run the same command again"
                )
            _write(outcome, kept / "out", {"code": code.combined(inputs["code"]), "key": key})
            files.put_folder(kept / "out", self.folder)
            seconds = work.clock.cost(gpus_of(name)) | {"device": computes_on(name)}
            files.write_json(row.times / f"{name}.json", seconds)
        if outcome.summary:
            print(f"{row.name}: {outcome.summary}", flush=True)

    def identity(self) -> dict[str, Any]:
        """All that its result depends on, what it reads as it stands here."""
        inputs = files.read_json(self.inputs)
        return {**inputs, "read": {path: _digest(Path(path)) for path in inputs["reads"]}, "versions": self.versions()}


def import_slow(steps: Sequence[Step]) -> None:
    """Import what steps, which are then forked, take long to import."""
    names = [name for step in steps for name in step.slow]
    names += ["timm" for step in steps if "timm" in step.row.method.read_text()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's, of its own modules
        for name in dict.fromkeys(names):
            importlib.import_module(name)


def _digest(path: Path) -> str:
    """sha256 of a file, or of what a finished folder says of its files; "" where it is missing, as its reader will say."""
    whole = [place for place in (path, path / "stage.json", path / "data.json") if place.is_file()]
    return files.sha256_file(whole[0]) if whole else ""


def stands(folder: Path, key: str) -> bool:
    """Whether a step's folder holds, whole, the result of this key."""
    about = files.read_json(folder / "stage.json") if (folder / "stage.json").exists() else {}
    return about.get("key") == key and all(
        (folder / name).is_file() and files.sha256_file(folder / name) == digest
        for name, digest in about["sha256"].items()
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


def _write(outcome: Outcome, out: Path, about: Mapping[str, str]) -> None:
    """The outputs of a step; beside them its environment, the digest of its code, and its key."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if out.exists():  # of a run that was killed here
        shutil.rmtree(out)
    out.mkdir(parents=True)
    if outcome.columns:
        columns = {name: pa.array(tensor.cpu().numpy()) for name, tensor in outcome.columns.items()}
        lines = max(
            map(len, columns.values())
        )  # a shorter column speaks of the first images, and has nulls after those
        whole = {n: pa.concat_arrays([c, pa.nulls(lines - len(c), c.type)]) for n, c in columns.items()}
        pq.write_table(pa.table(whole), out / "evidence.parquet")
    if outcome.images:
        from safetensors.torch import save

        images = {name: tensor.cpu().contiguous() for name, tensor in outcome.images.items()}
        files.write(out / "images.safetensors", save(images))
    for path, data in {**outcome.files, **{f"record/{k}": data for k, data in outcome.published.items()}}.items():
        files.write(out / path, data)
    if outcome.fields:
        files.write_json(out / "fields.json", dict(outcome.fields))
    digests = {p.relative_to(out).as_posix(): files.sha256_file(p) for p in sorted(out.rglob("*")) if p.is_file()}
    files.write_json(out / "stage.json", {"environment": environment(), **about, "sha256": digests})
