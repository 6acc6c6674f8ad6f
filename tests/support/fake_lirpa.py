"""A test double of auto_LiRPA's interface for networks that are affine in the image: its bounds are exact there.

Nothing of the package is here; `benchmark/certificates/crown.py` is tested against the real one where it is installed.
"""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from torch import nn


class PerturbationLpNorm:
    def __init__(self, eps: float, norm: float) -> None:
        assert norm == 2
        self.eps = eps


class BoundedTensor:
    def __init__(self, data: torch.Tensor, ptb: PerturbationLpNorm) -> None:
        self.data, self.ptb = data, ptb


class BoundedModule:
    calls = 0
    loose = 1.0  # CROWN's spread over the true one, which alpha-CROWN gives
    raised_by = 0.0  # added to every bound: a package that is wrong

    def __init__(self, model: nn.Module, example: torch.Tensor, bound_opts: dict, device: torch.device) -> None:
        assert example.dtype == torch.get_default_dtype() == torch.float64
        self.model, self.options = model, bound_opts

    def compute_bounds(self, x: tuple, C: torch.Tensor, method: str, bound_upper: bool) -> tuple:
        assert not bound_upper
        assert torch.is_grad_enabled() == (method != "CROWN"), "CROWN would keep the graphs of all its matrices"
        assert method == "CROWN" or (method == "CROWN-Optimized" and self.options["optimize_bound_args"]["iteration"])
        BoundedModule.calls += 1
        (image,) = x
        jacobian = torch.func.jacrev(lambda z: self.model(z)[0])(image.data).flatten(1)  # (classes, pixels)
        spread_by = BoundedModule.loose if method == "CROWN" else 1.0
        centre = C[0] @ self.model(image.data)[0]
        spread = torch.linalg.vector_norm(C[0] @ jacobian, dim=1) * image.ptb.eps * spread_by
        return (centre - spread + BoundedModule.raised_by)[None], None


def install(monkeypatch: pytest.MonkeyPatch, raised_by: float = 0.0) -> type[BoundedModule]:
    """Puts the double where `import auto_LiRPA` finds it."""
    package = ModuleType("auto_LiRPA")
    package.__version__ = "0.0-double"
    for part in (BoundedModule, BoundedTensor, PerturbationLpNorm):
        setattr(package, part.__name__, part)
    monkeypatch.setitem(sys.modules, "auto_LiRPA", package)
    monkeypatch.setattr(BoundedModule, "raised_by", raised_by)
    monkeypatch.setattr(BoundedModule, "calls", 0)
    return BoundedModule
