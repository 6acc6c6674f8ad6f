"""Stage `certify`: certified radii of one row. `python -m benchmark.stages.certify <track> <submission> <variant>`"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmark import errors, files, scratch
from benchmark.attacks import pgd
from benchmark.errors import BenchmarkError
from benchmark.evaluate import judge
from benchmark.records import Certificate, CertificateSpec, ThreatModel, to_json
from benchmark.stages.context import Clock, Entry, entry, evaluation_inputs, finish, run_settings
from benchmark.stages.model import evaluation_images, set_up, trained_model
from benchmark.verdicts import into_ball


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
    attacked = attack_certified(model, images, labels, radii, row.row)
    clean = judge(model, images, labels, batch_size)
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
        attacked=attacked,
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


def attack_certified(
    model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, radii: torch.Tensor, row: str
) -> int:
    """Attacks each certified image at its own radius (PGD, 8 starts, 30 steps); how many images were tried.

    The track's attacks look at a few fixed radii, where a certificate that is somewhat too large would pass.

    Raises:
        BenchmarkError: one was broken, with its index, radius and margins.
    """
    certified = (radii > 0).nonzero()[:, 0].tolist()
    for image in certified:
        threat = ThreatModel(norm="L2", eps=float(radii[image]))
        start, label = images[image : image + 1].repeat(8, 1, 1, 1), labels[image : image + 1].repeat(8)
        found = pgd.attack(model, start, label, threat, seed=image, steps=30, step_size=threat.eps / 5)
        after = judge(model, into_ball(found, start, threat, "pgd at the certified radius"), label, 8)
        if not after.right.all():
            raise BenchmarkError(
                f"{row}: image {image} is certified at l2 {threat.eps:.6g} but PGD broke it there "
                f"(margin {float(after.margin.min()):.6g}); the certificate is wrong and nothing is published"
            )
    return len(certified)


if __name__ == "__main__":
    errors.run(lambda: certify_row(*sys.argv[1:]))
