"""Stage `certify`: certified radii of one row. `python -m benchmark.stages.certify <track> <submission> <variant>`"""

from __future__ import annotations

import importlib
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmark.audit import auditor
from benchmark.loading.rows import Entry, entry
from benchmark.loading.run_settings import run_settings
from benchmark.loading.trained import evaluation_images, trained_model
from benchmark.results.certificate import Certificate
from benchmark.runtime import errors, files, scratch
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.torch_setup import set_up
from benchmark.specs.base import to_json
from benchmark.specs.certificate import CertificateSpec
from benchmark.stages.base import Clock, evaluation_inputs, finish
from benchmark.verdicts.prediction import predict


def certify_row(track: str, submission: str, variant: str) -> None:
    """Writes work/<track>/<row>/certify: radii.parquet and certificate.json."""
    row = entry(track, submission, variant)
    spec = row.settings.certificate
    if spec is None:
        raise BenchmarkError(f"{row.row} declares no certificate on {track}")
    device = set_up(run_settings().evaluate.device)
    inputs = evaluation_inputs(row, "certify", spec.model_dump())
    with scratch.locked(f"{track}/{row.row}/certify", inputs, row.folder / "certify") as folder:
        if folder is not None:
            _certify(row, spec, folder, device, inputs["code"])


def _certify(row: Entry, spec: CertificateSpec, folder: Path, device: torch.device, code_digest: str) -> None:
    clock = Clock(folder)
    images, labels = evaluation_images(row, device)
    model, batch_size = trained_model(row, device), row.track.evaluation.batch_size
    module = certificate_module(spec.name)
    gap, bound = module.float32_gap(model, images, labels)
    radii = certified_radii(model, images, labels, spec, batch_size)
    certify = partial(module.certify, **spec.parameters)
    audit = auditor.audit(model, images, labels, radii, certify, row.row, batch_size=batch_size)
    clean = predict(model, images, labels, batch_size)
    columns = {
        "label": labels,
        "clean_prediction": clean.prediction,
        "clean_margin": clean.margin,
        "certified_l2": radii,
    }
    out = folder / "out"
    out.mkdir(exist_ok=True)
    pq.write_table(pa.table({name: tensor.cpu().numpy() for name, tensor in columns.items()}), out / "radii.parquet")
    certificate = Certificate(
        name=spec.name,
        guarantee=module.guarantee(),
        parameters=spec.parameters,
        float32_gap=gap,
        float32_bound=bound,
        audit=audit,
    )
    files.write(out / "certificate.json", to_json(certificate))
    finish(row, "certify", out, code_digest, clock)
    print(f"{row.row}: median certified l2 radius {float(radii.median()):.4f} over {len(labels)} images")


def certificate_module(name: str) -> ModuleType:
    """benchmark/certificates/<name>.py; a BenchmarkError when it is no certificate of models."""
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
    """(n,) float64 l2 radii, batch by batch; a BenchmarkError for one that is negative or not finite."""
    module = certificate_module(spec.name)
    parts = [
        module.certify(model, x, y, **spec.parameters)
        for x, y in zip(images.split(batch_size), labels.split(batch_size), strict=True)
    ]
    if not all(isinstance(part, torch.Tensor) for part in parts):
        raise BenchmarkError(f"certificate {spec.name} returned a {type(parts[0]).__name__}, which certifies nothing")
    radii = torch.cat(parts)
    if radii.shape != labels.shape or not torch.isfinite(radii).all() or (radii < 0).any():
        raise BenchmarkError(f"certificate {spec.name} returned a radius that is negative or not finite")
    return radii


if __name__ == "__main__":
    errors.run(lambda: certify_row(*sys.argv[1:]))
