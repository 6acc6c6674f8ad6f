"""`rvb audit`: a row's published certificates, attacked harder than in the pipeline. No DVC stage; it writes nothing."""

from __future__ import annotations

import importlib
import time
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmark.commands.terminal import TrackOption, console
from benchmark.runtime.errors import BenchmarkError

if TYPE_CHECKING:
    import pyarrow as pa

    from benchmark.loading.rows import Row
    from benchmark.results.certificate import AuditResult


def audit(
    row: Annotated[str, typer.Argument(help="<submission>-<variant>, or <submission> for all its certified rows")],
    track: TrackOption = "digits",
    images: Annotated[int, typer.Option(min=0, help="Certified images to try, evenly spread; 0 for all.")] = 0,
    restarts: Annotated[int, typer.Option(min=1, help="Random starts of each attack an image.")] = 32,
    seed: Annotated[int, typer.Option(min=0, help="Of all that is drawn.")] = 0,
) -> None:
    """Try hard to break a row's published certificates; exit status 1 if one breaks."""
    from benchmark.loading.run_settings import run_settings
    from benchmark.runtime.torch_setup import apart, set_up

    device = set_up(run_settings().evaluate.device)
    for name in certified_rows(track, row):
        result = apart(device, audit_row, track, name, images or None, restarts, seed)
        table = Table("audited", "tried or found", title=f"{name} on {track}: every certificate held")
        for field, value in result.model_dump().items():
            text = (
                f"{value:.6f}" if isinstance(value, float) else ", ".join(value) if field == "attacks" else str(value)
            )
            table.add_row(field.replace("_", " "), text)
        console.print(table)


def certified_rows(track: str, name: str) -> list[str]:
    """`name` itself if it is a row, else the rows of that submission that declare a certificate on `track`.

    Raises:
        BenchmarkError: there is none.
    """
    from benchmark.loading import submissions
    from benchmark.loading.rows import load_row

    if "-" in name:
        rows = [load_row(track, name)]
    else:
        variants = submissions.load(name).variants
        rows = [load_row(track, f"{name}-{variant}") for variant in variants if track in variants[variant].tracks]
    certified = [row.name for row in rows if row.settings.certificate]
    if not certified:
        raise BenchmarkError(f"{name} declares no certificate on {track}; there is nothing to audit")
    return certified


def audit_row(track: str, name: str, images: int | None, restarts: int, seed: int) -> AuditResult:
    """Audits the radii in work/<track>/<row>/certify against the weights beside them, on `images` images (None: all).

    Raises:
        BenchmarkError: no radii yet, radii of other images or weights, or a certificate that broke.
    """
    import torch

    from benchmark.evaluation import audit as auditing
    from benchmark.loading.rows import load_row
    from benchmark.loading.run_settings import run_settings
    from benchmark.loading.trained import evaluation_images
    from benchmark.runtime.torch_setup import set_up
    from benchmark.sandbox.model import evaluated_model
    from benchmark.verdicts.prediction import predict

    row, progress, started = load_row(track, name), Console(stderr=True, soft_wrap=True), time.perf_counter()
    spec = row.settings.certificate
    assert spec is not None
    device = set_up(run_settings().evaluate.device)
    evidence = _published(row)
    radii = torch.tensor(evidence["certified_l2"].to_pylist(), dtype=torch.float64, device=device)
    chosen = auditing.spread((radii > 0).nonzero()[:, 0], images)
    only = torch.zeros_like(radii).index_copy(0, chosen, radii[chosen])

    def report(text: str) -> None:
        progress.print(f"{row.name}: {time.perf_counter() - started:.0f} s: {text}", highlight=False)

    module = importlib.import_module(f"benchmark.certificates.{spec.name}")
    with evaluated_model(row, device) as judged:
        x, y = evaluation_images(row, device)
        batch_size = row.track.evaluation.batch_size
        judged.confirm(x, batch_size, row.name)
        now = {"label": y, "clean_prediction": predict(judged.model, x, y, batch_size).prediction}
        if any(evidence[name].to_pylist() != values.tolist() for name, values in now.items()):
            raise BenchmarkError(
                f"{row.folder}/certify is of other images or weights than those in {row.folder.parent}; run `rvb repro` to "
                "certify again"
            )
        plan = auditing.deep(restarts, seed)
        audit = auditing.Audit(judged.model, x, y, only, row.name, plan=plan, report=report)
        return audit.run(partial(module.certify, **spec.parameters), batch_size)


def _published(row: Row) -> pa.Table:
    import pyarrow.parquet as pq

    path = row.folder / "certify" / "evidence.parquet"
    if not path.exists():
        raise BenchmarkError(f"{path} is missing; run `rvb repro --track {row.track.name}` to certify the row")
    return pq.read_table(path)
