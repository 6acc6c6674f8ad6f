"""`params.yaml`: how this machine runs the pipeline."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from benchmark.runtime.arithmetic import Arithmetic
from benchmark.specs.base import Frozen
from benchmark.specs.threat import Engine


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
