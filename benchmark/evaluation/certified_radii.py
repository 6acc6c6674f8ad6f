"""Find a certificate by its name, and certify images."""

from __future__ import annotations

import importlib
from types import ModuleType

import torch

from benchmark.attacks.prediction import batched
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import CertificateSpec


def certificate_module(name: str) -> ModuleType:
    """Return benchmark/certificates/<name>.py; raise a BenchmarkError where it does not certify models."""
    module = importlib.import_module(f"benchmark.certificates.{name}")
    missing = [entry for entry in ("certify", "guarantee", "float32_gap") if not hasattr(module, entry)]
    if missing:
        raise BenchmarkError(
            f"benchmark/certificates/{name}.py certifies no models: it defines no {missing[0]}(); name another certificate"
        )
    return module


def certified_radii(
    model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, spec: CertificateSpec, batch_size: int
) -> torch.Tensor:
    """Return float64 l2 radii (n,), computed in batches; raise a BenchmarkError where one is negative or not finite."""
    module = certificate_module(spec.name)

    def certified(rows: slice) -> torch.Tensor:
        radii = module.certify(model, images[rows], labels[rows], **spec.parameters)
        if not isinstance(radii, torch.Tensor):
            raise BenchmarkError(f"certificate {spec.name} returned a {type(radii).__name__}, which certifies nothing")
        return radii

    radii = torch.cat(batched(certified, len(images), batch_size, least=1))
    if radii.shape != labels.shape or not torch.isfinite(radii).all() or (radii < 0).any():
        raise BenchmarkError(f"certificate {spec.name} returned a radius that is negative or not finite")
    return radii
