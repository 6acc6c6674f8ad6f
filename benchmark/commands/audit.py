"""`rvb audit`: a row's published certificates, attacked harder than in the pipeline. No DVC stage; it writes nothing."""

from __future__ import annotations

import importlib
import time
from functools import partial

import pyarrow.parquet as pq
import torch
from rich.console import Console

from benchmark.audit import auditor
from benchmark.loading import submissions
from benchmark.loading.rows import Entry, entry_of_row
from benchmark.loading.run_settings import run_settings
from benchmark.loading.trained import evaluation_images, trained_model
from benchmark.results.certificate import AuditResult
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.torch_setup import set_up
from benchmark.verdicts.prediction import predict


def certified_rows(track: str, name: str) -> list[str]:
    """`name` itself if it is a row, else the rows of that submission that declare a certificate on `track`.

    Raises:
        BenchmarkError: there is none.
    """
    if "-" in name:
        rows = [entry_of_row(track, name)]
    else:
        variants = submissions.load(name).variants
        rows = [entry_of_row(track, f"{name}-{variant}") for variant in variants if track in variants[variant].tracks]
    certified = [row.row for row in rows if row.settings.certificate]
    if not certified:
        raise BenchmarkError(f"{name} declares no certificate on {track}; there is nothing to audit")
    return certified


def audit_row(track: str, name: str, images: int | None, restarts: int, seed: int) -> AuditResult:
    """Audits the radii in work/<track>/<row>/certify against the weights beside them, on `images` images (None: all).

    Raises:
        BenchmarkError: no radii yet, radii of other images or weights, or a certificate that broke.
    """
    row, console, started = entry_of_row(track, name), Console(stderr=True, soft_wrap=True), time.perf_counter()
    spec = row.settings.certificate
    assert spec is not None
    device = set_up(run_settings().evaluate.device)
    radii = _published(row).to(device)
    x, y = evaluation_images(row, device)
    model, batch_size = trained_model(row, device), row.track.evaluation.batch_size
    _check_fits(row, predict(model, x, y, batch_size).prediction, y)
    chosen = auditor.spread((radii > 0).nonzero()[:, 0], images)
    only = torch.zeros_like(radii).index_copy(0, chosen, radii[chosen])

    def report(text: str) -> None:
        console.print(f"{row.row}: {time.perf_counter() - started:.0f} s: {text}", highlight=False)

    module = importlib.import_module(f"benchmark.certificates.{spec.name}")
    return auditor.audit(
        model,
        x,
        y,
        only,
        partial(module.certify, **spec.parameters),
        row.row,
        batch_size=batch_size,
        plan=auditor.deep(restarts, seed),
        report=report,
    )


def _published(row: Entry) -> torch.Tensor:
    path = row.folder / "certify" / "radii.parquet"
    if not path.exists():
        raise BenchmarkError(f"{path} is missing; run `rvb repro --track {row.track.name}` to certify the row")
    return torch.tensor(pq.read_table(path)["certified_l2"].to_pylist(), dtype=torch.float64)


def _check_fits(row: Entry, prediction: torch.Tensor, labels: torch.Tensor) -> None:
    """The radii were computed for these images and this network."""
    path = row.folder / "certify" / "radii.parquet"
    table = pq.read_table(path)
    same = all(
        table[name].to_pylist() == now.tolist() for name, now in (("label", labels), ("clean_prediction", prediction))
    )
    if not same:
        raise BenchmarkError(
            f"{path} is of other images or weights than those in {row.folder.parent}; run `rvb repro` to certify again"
        )
