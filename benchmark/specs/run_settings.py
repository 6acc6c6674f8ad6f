"""The only reader of params.yaml."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from benchmark.runtime import files
from benchmark.runtime.machine import device_name
from benchmark.runtime.paths import PARAMS
from benchmark.runtime.yaml_file import read_model
from benchmark.specs.run import RunSettings

_engine: ContextVar[str] = ContextVar("engine", default="")


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
