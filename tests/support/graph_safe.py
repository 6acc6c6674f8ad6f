"""A check on the CPU that a step could be captured as a CUDA graph: run on `meta`, it neither waits for a device nor copies
to one.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from lightning_fabric.plugins.precision import Precision
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
WAITS = {aten._linalg_check_errors.default, aten._linalg_svd.default, aten._linalg_eigh.default, aten.equal.default}
COPIES = {aten._to_copy.default, aten.copy_.default}


class Unsafe(RuntimeError):
    """An operation that a CUDA graph cannot hold, as torch says it on a GPU."""


class GraphSafe(TorchDispatchMode):
    """Raises `Unsafe` for operations that wait for `meta`, as for a GPU, or that copy to it from the processor."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in WAITS:
            raise Unsafe(f"{function} waits for the device")
        try:
            result = function(*args, **(kwargs or {}))
        except (RuntimeError, NotImplementedError) as error:
            raise Unsafe(f"{function}: {str(error).splitlines()[0]}") from None
        given = args[1] if function is aten.copy_.default else args[0] if args else None
        if function in COPIES and given.device.type == "cpu" and result.device.type == "meta":
            raise Unsafe("a tensor is copied from the processor")
        return result


class MetaFabric:
    """What `Steps` asks of Fabric, on a device that computes nothing."""

    device = torch.device("meta")
    strategy = SimpleNamespace(precision=Precision())

    def setup(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        return model, optimizer

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def clip_gradients(self, model: nn.Module, _: object, *, max_norm: float, error_if_nonfinite: bool) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), max_norm, error_if_nonfinite=error_if_nonfinite)
