"""`rvb attack`: try one suite on a trained row. `rvb audit`: attack a row's certificates harder than the pipeline does.

Both write nothing but scratch that they remove; DVC has no stage for them.
"""

from __future__ import annotations

import sys
import time
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmark.commands.terminal import EngineOption, TrackOption, console, row_names
from benchmark.records.accuracy import AttackResult, AuditResult
from benchmark.runtime import code, files, scratch
from benchmark.runtime.clock import Clock
from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.runtime.machine import environment
from benchmark.sandbox import forks
from benchmark.specs import submissions
from benchmark.specs.rows import load_row
from benchmark.specs.run_settings import run_settings, using_engine
from benchmark.specs.threat import Engine
from benchmark.steps.attack import Attack
from benchmark.steps.base import Work


def attack(
    row: Annotated[str, typer.Argument(help="<submission>-<variant>, trained", autocompletion=row_names)],
    suite: Annotated[str, typer.Option(help="One of the track's, its development ones, or adaptive.")] = "quick",
    track: TrackOption = "digits",
    engine: EngineOption = None,
) -> None:
    """Try a suite of attacks on a trained row; prints what is left standing and keeps nothing."""
    with redirect_stdout(sys.stderr):
        n, clean, results = try_suite(track, row, suite, engine)
    table = Table("attack", "after each part", "standing", title=f"{row} on {track}, suite {suite}: not published")
    table.add_row("clean", "", f"{clean} of {n}")
    for result in results:
        parts = ", ".join(f"{part} {left}" for part, left in result.remaining.items())
        table.add_row(result.id, parts, f"{result.accuracy.count} of {n}")
    console.print(table)
    for result in results:
        for warning in result.warnings:
            console.print(f"warning: {result.id}: {warning}")


def try_suite(track: str, name: str, suite: str, engine: Engine | None = None) -> tuple[int, int, list[AttackResult]]:
    """Run one of the row's suites, or a development suite, on the weights in work/<track>/<row>/train, as the pipeline would.

    Killed and run again, it resumes after the images already done.

    Returns:
        The number of attacked images, the number that are right when clean, and the result of each attack.

    Raises:
        BenchmarkError: an unknown row or suite, a row that is not trained yet, or an attack that the harness refuses.
    """
    row = load_row(track, name)
    suites = {**row.track.suites, **row.track.development}
    row = replace(row, track=row.track.model_copy(update={"suites": suites}))
    if suite not in row.suites:
        raise BenchmarkError(f"{row.name} on {track} has no suite {suite!r}{near_miss(suite, row.suites)}")
    if not row.weights.exists():
        raise BenchmarkError(f"{row.weights} is missing; run `rvb repro {row.name} --track {track}`")
    step = Attack(row, f"attack-{suite}")
    with using_engine(engine or ""):
        settings = step.settings
    identity = {
        "code": code.digests(*step.entries),
        "settings": settings,
        "weights": files.sha256_file(row.weights),
        "environment": environment(),
    }
    with scratch.locked(f"{track}/{row.name}/trial-{suite}", identity) as folder:
        outcome = step.run(Work(row, step.name, settings, tuple(step.reads), folder, Clock(folder)))
    margins = outcome.columns["clean_margin"][: row.track.evaluation.attacked]
    results = [AttackResult.model_validate(result) for result in outcome.fields["attacks"]]
    return len(margins), int((margins > 0).sum()), results


def audit(
    row: Annotated[str, typer.Argument(help="<submission>-<variant>, or <submission> for all its certified rows")],
    track: TrackOption = "digits",
    images: Annotated[int, typer.Option(min=0, help="Certified images to try, evenly spread; 0 for all.")] = 0,
    restarts: Annotated[int, typer.Option(min=1, help="Random starts of each attack an image.")] = 32,
    seed: Annotated[int, typer.Option(min=0, help="Of all that is drawn.")] = 0,
) -> None:
    """Try hard to break a row's published certificates; exit status 1 if one breaks."""
    from benchmark.runtime.torch_setup import set_up

    def audit_and_print(name: str) -> None:
        result = audit_row(track, name, images or None, restarts, seed)
        table = Table("audited", "tried or found", title=f"{name} on {track}: every certificate held")
        for field, value in result.model_dump().items():
            text = f"{value:.6f}" if isinstance(value, float) else str(value)
            table.add_row(field.replace("_", " "), ", ".join(value) if field == "attacks" else text)
        console.print(table)

    set_up(run_settings().evaluate.device)  # imports torch, once for all forks
    for name in certified_rows(track, row):
        # a process that has started a GPU cannot fork another that uses one, as each sandboxed row does
        forks.run(partial(audit_and_print, name))


def certified_rows(track: str, name: str) -> list[str]:
    """Return `name` itself if it is a row, else the rows of that submission that declare a certificate on `track`.

    Raise a BenchmarkError where there is none.
    """
    variants = {} if "-" in name else submissions.load(name).variants
    names = [name] if "-" in name else [f"{name}-{v}" for v, entry in variants.items() if track in entry.tracks]
    certified = [row.name for row in (load_row(track, name) for name in names) if row.settings.certificate]
    if not certified:
        raise BenchmarkError(f"{name} declares no certificate on {track}; there is nothing to audit")
    return certified


def audit_row(track: str, name: str, images: int | None, restarts: int, seed: int) -> AuditResult:
    """Audit the radii in work/<track>/<row>/certify with the weights beside them, on `images` images (None: all).

    Raise a BenchmarkError where there are no radii, where they are of other images or weights, or where a certificate broke.
    """
    import pyarrow.parquet as pq
    import torch

    from benchmark.attacks.prediction import predict
    from benchmark.data.tensors import evaluation_images
    from benchmark.evaluation import audit as auditing
    from benchmark.evaluation.certified_radii import certificate_module
    from benchmark.runtime.torch_setup import set_up
    from benchmark.sandbox.model import evaluated_model

    row, progress, started = load_row(track, name), Console(stderr=True, soft_wrap=True), time.perf_counter()
    spec, folder = row.settings.certificate, row.folder / "certify"
    assert spec is not None
    device, path = set_up(run_settings().evaluate.device), folder / "evidence.parquet"
    if not path.exists():
        raise BenchmarkError(f"{path} is missing; run `rvb repro --track {track}` to certify the row")
    evidence = pq.read_table(path)
    radii = torch.tensor(evidence["certified_l2"].to_pylist(), dtype=torch.float64, device=device)
    chosen = auditing.spread((radii > 0).nonzero()[:, 0], images)
    only = torch.zeros_like(radii).index_copy(0, chosen, radii[chosen])

    def report(text: str) -> None:
        progress.print(f"{row.name}: {time.perf_counter() - started:.0f} s: {text}", highlight=False)

    certify = partial(certificate_module(spec.name).certify, **spec.parameters)
    with evaluated_model(row, device) as evaluated:
        x, y = evaluation_images(row, device)
        batch_size = row.track.evaluation.batch_size
        evaluated.confirm(x, batch_size, row.name)
        present = {"label": y, "clean_prediction": predict(evaluated.model, x, y, batch_size).prediction}
        if any(evidence[name].to_pylist() != values.tolist() for name, values in present.items()):
            raise BenchmarkError(
                f"{folder} is of other images or weights than those in {row.folder.parent}; run `rvb repro` to certify again"
            )
        plan = auditing.deep(restarts, seed)
        audit = auditing.Audit(evaluated.model, x, y, only, row.name, plan=plan, report=report)
        return audit.run(certify, batch_size)
