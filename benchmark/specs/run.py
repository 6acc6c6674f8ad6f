"""`params.yaml`: how this machine runs the pipeline."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from benchmark.runtime.arithmetic import Arithmetic
from benchmark.specs.base import Frozen
from benchmark.specs.threat import Engine


class TrainRun(Frozen):
    """`params.yaml`, train: Fabric's accelerator and precision, and the seed.

    `processes`: how many share each batch of a training, each on a core or a GPU of its own.
    """

    seed: int = 0
    device: str = "cpu"  # cpu, cuda, cuda:1, auto: Lightning Fabric's accelerator
    precision: str = "32-true"
    processes: int = Field(default=1, ge=1, exclude_if=lambda processes: processes == 1)


class EvaluateRun(Frozen):
    """`params.yaml`, evaluate: the device, and the engine that runs AutoAttack."""

    device: str = "cpu"
    engine: Engine = "fast"


class RunSettings(Frozen):
    """`params.yaml`: how this machine runs the pipeline.

    `wall`: how the code of submissions is held. `full`: refused where a part of the wall is missing; `weak`: with what this
    machine has; `none`: in the judge's own process, but for processes that share a training.
    """

    wall: Literal["full", "weak", "none"] = "full"
    arithmetic: Arithmetic = "portable"
    train: TrainRun = TrainRun()
    evaluate: EvaluateRun = EvaluateRun()
