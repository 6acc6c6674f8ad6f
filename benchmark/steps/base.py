"""The base of all steps of a row: key, lock, clock, resuming, outputs.

A step is one file of this folder that ends in `step = <Its class>`, and a line of the table in protocol.py. It
defines where it applies, what it reads, and on which settings and components its result depends. These are written to
its inputs file (benchmark/pipeline/inputs.py), on which its DVC stage depends. The inputs file and the content that
the step reads are the key of its result. `run` computes, and imports modules that are slow to import: planning a
pipeline imports these files too.
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
    """The results of a step.

    Attributes:
        columns: evidence by column, one value an image, (n,) each.
        fields: what it adds to the Record, as JSON values. Lists of objects that several steps give are joined,
            objects merged; anything else must agree in all steps. A field that Record lacks goes into `measured`.
        images: (n, c, h, w) float32 images that the Record keeps, by attack.
        published: files beside the Record, by path.
        files: files for later steps, by path.
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
    """A running step. A kill leaves its folder `scratch` for the next run; each file in `blocks` is about some images."""

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
        """Print a line of progress, and keep the time so far."""
        self.clock.lap()
        print(f"{self.row.name}: {text}", flush=True)


class Step(ABC):
    """One kind of work on a row; each file's class is one kind.

    Attributes:
        name: that of its file, or one of several, `<file>-<what>`.
        earlier: the folders of the row's steps before it, in order.
    """

    declared_in: ClassVar[str] = "track"  # the step applies where the row has this part
    several: ClassVar[bool] = False  # whether its names on a row are `<file>-<what>`
    refusal: ClassVar[str] = "{row} has no step {step} on {track}"  # the message where it does not apply

    def __init__(self, row: Row, name: str, earlier: Sequence[Path] = ()) -> None:
        self.row, self.name, self.earlier = row, name, tuple(earlier)

    @classmethod
    def applies(cls, row: Row) -> bool:
        return bool(attrgetter(cls.declared_in)(row))

    @classmethod
    def names(cls, row: Row) -> list[str]:
        """Return the names of the kind's steps on the row, in order."""
        return [cls.__module__.rpartition(".")[2]] if cls.applies(row) else []

    @classmethod
    def refuse(cls, row: Row, name: str) -> BenchmarkError:
        """Return the error for a row to which the step does not apply, with what to do."""
        return BenchmarkError(cls.refusal.format(row=row.name, step=name, track=row.track.name))

    @property
    def what(self) -> str:
        return self.name.partition("-")[2]

    @property
    def declared(self) -> Any:
        """The value of the row's part `declared_in`."""
        return attrgetter(self.declared_in)(self.row)

    @property
    def folder(self) -> Path:
        """The folder of its outputs."""
        return self.row.folder / self.name

    @property
    def inputs(self) -> Path:
        """Its inputs file: code by file, settings, arithmetic, and the paths that it reads."""
        return self.row.inputs / f"{self.name}.json"

    @property
    def reads(self) -> list[Path]:
        """The files and folders that it reads."""
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
        """The files of code that it finds by name."""
        return self.row.method_files

    @property
    def entries(self) -> list[Path]:
        """The files from which its code is followed."""
        return [Path(*type(self).__module__.split(".")).with_suffix(".py"), *self.components]

    @property
    def slow(self) -> list[str]:
        """Modules that take long to import, imported once before the steps' forks; none of a submission."""
        code = [Path(path).with_suffix("") for path in files.read_json(self.inputs)["code"]]
        own = [path.parts for path in code if path.parts[0] == "benchmark" and path.name != "__init__"]
        return [*SLOW, *map(".".join, own)]

    def versions(self) -> dict[str, str]:
        """Return versions of packages. Partial work is discarded when they change."""
        return {"torch": version("torch")}

    @abstractmethod
    def run(self, work: Work) -> Outcome: ...

    def execute(self, again: bool = False) -> None:
        """Run, or resume where a killed process stopped; write `folder`, and the times beside it.

        Args:
            again: run even if a result of the same key exists, which is else kept.

        Raises:
            BenchmarkError: what it reads is missing, its inputs file is of other settings, or code or settings change
                meanwhile.
        """
        row, name, inputs = self.row, self.name, files.read_json(self.inputs)
        if inputs["settings"] != self.settings or inputs["arithmetic"] != arithmetic.in_force():
            raise BenchmarkError(f"{row.name}: its settings changed just now; run the same command again")
        reads = tuple(map(Path, inputs["reads"]))
        for path in reads:
            _check_whole(path)
        identity = self.identity()
        key = scratch.key(identity)
        partial = identity | {"environment": environment()}  # other packages, threads or arithmetic: it is begun again
        with scratch.locked(f"{row.home.relative_to(WORK)}/{row.name}/{name}", partial) as kept:
            if not again:
                if stands(self.folder, key):
                    print(f"{row.name}: {name} is kept, nothing that it depends on has changed", flush=True)
                    return
                # a result of another key: no later step may read it if this one fails
                shutil.rmtree(self.folder, ignore_errors=True)
            work = Work(row, name, inputs["settings"], reads, kept, Clock(kept))
            outcome = self.run(work)
            # DVC hashes inputs when its stage ends, so the old code's result would be recorded under the new code's hash
            digests = code.digests(*map(Path, inputs["code"]))
            if files.read_json(self.inputs) != inputs or digests != inputs["code"]:
                raise BenchmarkError(f"{row.name}: its code or settings changed while {name} ran; run the same command again")
            _write(outcome, kept / "out", {"code": code.combined(inputs["code"]), "key": key})
            files.put_folder(kept / "out", self.folder)
            seconds = work.clock.cost(gpus_of(name)) | {"device": computes_on(name)}
            files.write_json(row.times / f"{name}.json", seconds)
        if outcome.summary:
            print(f"{row.name}: {outcome.summary}", flush=True)

    def identity(self) -> dict[str, Any]:
        """Return all that its result depends on, with the digests of what it reads."""
        inputs = files.read_json(self.inputs)
        return {**inputs, "read": {path: _digest(Path(path)) for path in inputs["reads"]}, "versions": self.versions()}


def import_slow(steps: Sequence[Step]) -> None:
    """Import the modules that steps take long to import, before they are forked."""
    names = [name for step in steps for name in step.slow]
    names += ["timm" for step in steps if "timm" in step.row.method.read_text()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's, of its own modules
        for name in dict.fromkeys(names):
            importlib.import_module(name)


def _digest(path: Path) -> str:
    """Return the sha256 of a file, or of a finished folder's list of files; "" if it is missing, which its reader reports."""
    whole = [place for place in (path, path / "stage.json", path / "data.json") if place.is_file()]
    return files.sha256_file(whole[0]) if whole else ""


def stands(folder: Path, key: str) -> bool:
    """Return whether a step's folder holds the complete result of this key."""
    about = files.read_json(folder / "stage.json") if (folder / "stage.json").exists() else {}
    return about.get("key") == key and all(
        (folder / name).is_file() and files.sha256_file(folder / name) == digest for name, digest in about["sha256"].items()
    )


def _check_whole(path: Path) -> None:
    """Raise BenchmarkError for a folder that is missing or incomplete. A missing file is reported by its reader."""
    lost = [] if path.suffix or path.exists() else [path]
    if (path / "stage.json").exists():
        lost += [path / name for name in files.read_json(path / "stage.json")["sha256"] if not (path / name).exists()]
    elif path.is_dir() and not (path / "data.json").exists():
        lost.append(path / "stage.json")
    if lost:
        raise BenchmarkError(f"{lost[0]} is missing; run `rvb repro` to build it")


def _write(outcome: Outcome, out: Path, about: Mapping[str, str]) -> None:
    """Write the outputs of a step; beside them its environment, the digest of its code, and its key."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if out.exists():  # left by a killed run
        shutil.rmtree(out)
    out.mkdir(parents=True)
    if outcome.columns:
        columns = {name: pa.array(tensor.cpu().numpy()) for name, tensor in outcome.columns.items()}
        lines = max(map(len, columns.values()))  # a shorter column is about the first images, and ends in nulls
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
