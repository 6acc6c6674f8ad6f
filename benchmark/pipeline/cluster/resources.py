"""`resources.yaml`: what stages take of a machine. No result depends on it."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationError, field_validator

from benchmark.loading.run_settings import device_of, run_settings
from benchmark.runtime.errors import BenchmarkError, explain
from benchmark.runtime.yaml_file import read_yaml
from benchmark.specs.base import Frozen
from benchmark.stages import catalogue
from benchmark.stages.catalogue import Planned

FILE = Path("resources.yaml")


class Asked(Frozen):
    """A part of what a stage takes; what is None, a more general entry says."""

    cores: int | None = Field(default=None, ge=1)
    memory: float | None = Field(default=None, gt=0)  # GiB
    gpus: float | None = Field(default=None, ge=0)
    minutes: float | None = Field(default=None, gt=0)  # the limit of a batch system
    images: int | None = Field(default=None, ge=1)  # of one task at most: larger stages are cut (pieces.py)

    @field_validator("gpus")
    @classmethod
    def _whole_or_a_share(cls, gpus: float | None) -> float | None:
        """What no engine gives would fail when the first stage is sent."""
        if gpus and not (gpus.is_integer() or 0.01 <= gpus < 1):
            raise ValueError("give whole GPUs, or a share of one from 0.01 on")
        return gpus


class Resources(Frozen):
    """What one stage takes: whole cores, GiB of memory, GPUs (a share of one too), and minutes at most.

    `images`, of attack, certify, smooth and corrupt, are those of one task at most; None: a stage is one task.
    """

    cores: int = 1
    memory: float = 2.0
    gpus: float = 0.0
    minutes: float = 720.0
    images: int | None = None

    def __str__(self) -> str:
        gpus = f", {self.gpus:g} GPU{'s' if self.gpus != 1 else ''}" if self.gpus else ""
        return f"{self.cores} core{'s' if self.cores != 1 else ''}, {self.memory:g} GiB{gpus}"


class ResourcesFile(Frozen):
    """By track, then by submission or row, each `<track>` or `<name>`, with `/<stage>` behind it for one stage alone."""

    default: Asked = Asked()
    tracks: dict[str, Asked] = Field(default={})
    submissions: dict[str, Asked] = Field(default={})


def read() -> ResourcesFile:
    """A BenchmarkError for an unknown key or a bad value."""
    try:
        return ResourcesFile.model_validate(read_yaml(FILE) if FILE.exists() else {})
    except ValidationError as error:
        raise explain(error, ResourcesFile, str(FILE)) from None


def resources_of(one: Planned, declared: ResourcesFile) -> Resources:
    """What a stage takes: the entry of its row before its submission's, that before its track's, that before the default.

    Without an entry a stage takes a core and 2 GiB, and a GPU where params.yaml has it compute on one; a training so much for
    each of the processes that share it.
    """
    row, names = one.row, [one.name, one.stage.name]
    processes, device = run_settings().train.processes if one.stage.name == "train" else 1, device_of(one.stage.name)
    gpus = 0 if device == "cpu" else 1 if device.startswith("cuda:") else processes
    found = Resources(cores=processes, memory=processes * Resources().memory, gpus=float(gpus))
    sections = [
        (declared.tracks, row.track.name),
        (declared.submissions, row.submission.name),
        (declared.submissions, row.name),
    ]
    entries = [declared.default]
    for section, name in sections:
        entries += [section[key] for key in (name, *(f"{name}/{stage}" for stage in reversed(names))) if key in section]
    for entry in entries:
        found = found.model_copy(update=entry.model_dump(exclude_none=True))
    return found


def check_names(declared: ResourcesFile, tracks: set[str], rows: set[str], submissions: set[str]) -> None:
    """A BenchmarkError for an entry of a track, submission, row or stage that does not exist."""
    for section, known, kind in (
        (declared.tracks, tracks, "track"), (declared.submissions, rows | submissions, "submission or row"),
    ):  # fmt: skip
        for name in section:
            if name.partition("/")[0] not in known:
                raise BenchmarkError(
                    f"{FILE}: no {kind} is called {name.partition('/')[0]!r}; mend or remove the entry"
                )
            if stage := name.partition("/")[2]:
                catalogue.find(stage)
