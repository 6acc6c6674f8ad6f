"""`params.yaml`: how this machine runs the pipeline, and its only reader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

from pydantic import Field

from benchmark.runtime import files
from benchmark.runtime.arithmetic import Arithmetic
from benchmark.runtime.machine import device_name
from benchmark.runtime.paths import PARAMS
from benchmark.runtime.yaml_file import read_model
from benchmark.specs.base import Frozen
from benchmark.specs.threat import Engine

_engine: ContextVar[str] = ContextVar("engine", default="")


class TrainRun(Frozen):
    """`params.yaml`, train: Lightning Fabric's accelerator and precision, and the seed.

    `tf32`: whether a GPU multiplies float32 matrices in TensorFloat-32. `compile`: whether steps on a GPU are
    captured, and compiled if no sandbox forbids it (training/capture.py). `processes`: how many processes share each
    batch, each on a core or a GPU of its own. Evaluation always uses float32.
    """

    seed: int = 0
    device: str = "cpu"  # cpu, cuda, cuda:1, auto: Lightning Fabric's accelerator
    precision: str = "32-true"
    tf32: bool = Field(default=False, exclude_if=lambda tf32: not tf32)
    compile: bool = Field(default=False, exclude_if=lambda compiles: not compiles)
    processes: int = Field(default=1, ge=1, exclude_if=lambda processes: processes == 1)


class EvaluateRun(Frozen):
    """`params.yaml`, evaluate: the device, and the engine that runs AutoAttack."""

    device: str = "cpu"
    engine: Engine = "fast"


class RunSettings(Frozen):
    """`params.yaml`: how this machine runs the pipeline.

    `wall`: the sandbox of submitted code. `full`: refuse to run if a part is missing; `weak`: the parts that this
    machine has; `none`: in the evaluator's process, except for processes that share a training.
    """

    wall: Literal["full", "weak", "none"] = "full"
    arithmetic: Arithmetic = "portable"
    train: TrainRun = TrainRun()
    evaluate: EvaluateRun = EvaluateRun()

    @property
    def devices(self) -> str:
        """The training device if it is a GPU, else the evaluation device: what a process that does both uses."""
        return self.evaluate.device if self.train.device == "cpu" else self.train.device


def run_settings() -> RunSettings:
    """Return `params.yaml`. Raise BenchmarkError for an unknown key or a bad value."""
    settings = read_model(PARAMS, RunSettings, files.version(PARAMS)) if PARAMS.exists() else RunSettings()
    chosen: dict[str, Any] = {"engine": _engine.get()} if _engine.get() else {}
    return settings.model_copy(update={"evaluate": settings.evaluate.model_copy(update=chosen)})


def device_of(stage: str) -> str:
    """Return the device of params.yaml for a stage of a row; `collect` runs on the CPU."""
    settings = run_settings()
    if stage == "collect":
        return "cpu"
    return settings.train.device if stage == "train" else settings.evaluate.device


def gpus_of(stage: str) -> int:
    """Return how many GPUs a stage computes on; 0 for the CPU."""
    device, settings = device_of(stage), run_settings()
    if device == "cpu":
        return 0
    import torch

    count = torch.cuda.device_count()
    shares = settings.train.processes if stage == "train" and ":" not in device else 1
    return min(shares, count)


def computes_on(stage: str) -> str:
    """Return the name of the stage's device on this machine."""
    return device_name(device_of(stage))


@contextmanager
def using_engine(engine: str) -> Iterator[None]:
    """Use this engine of AutoAttack inside the block, in place of params.yaml's; "" changes nothing."""
    token = _engine.set(engine)
    try:
        yield
    finally:
        _engine.reset(token)
