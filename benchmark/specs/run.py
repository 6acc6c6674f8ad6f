"""`params.yaml`: how this machine runs the pipeline."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from benchmark.runtime.arithmetic import Arithmetic
from benchmark.specs.base import Frozen
from benchmark.specs.threat import Engine


class TrainRun(Frozen):
    """`params.yaml`, train: Fabric's accelerator and precision, and the seed.

    `tf32`: whether a GPU multiplies float32 matrices in TensorFloat-32. `compile`: whether steps on a GPU are captured, and
    compiled where no sandbox forbids it (training/capture.py). `processes`: how many share each batch of a training, each
    on a core or a GPU of its own. Evaluation is float32, whatever stands here.
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

    `wall`: how the code of submissions is held. `full`: refused where a part of it is missing; `weak`: with what this
    machine has; `none`: in the judge's own process, but for processes that share a training.
    """

    wall: Literal["full", "weak", "none"] = "full"
    arithmetic: Arithmetic = "portable"
    train: TrainRun = TrainRun()
    evaluate: EvaluateRun = EvaluateRun()

    @property
    def devices(self) -> str:
        """That of training where it is a GPU, else that of evaluation: what a process that does both computes on."""
        return self.evaluate.device if self.train.device == "cpu" else self.train.device
