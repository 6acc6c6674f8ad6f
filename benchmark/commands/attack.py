"""`rvb attack`: try one suite on a trained row. `rvb audit`: attack a row's certificates harder than the pipeline does.

Both write nothing but scratch that they remove; DVC has no stage for them.
"""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmark.commands.terminal import EngineOption, TrackOption, console, row_names
from benchmark.records.certificate import AuditResult
from benchmark.runtime import code, files, scratch
from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.specs import methods, submissions
from benchmark.specs.rows import Row, load_row
from benchmark.specs.run_settings import run_settings
from benchmark.specs.threat import Engine
from benchmark.specs.track import ADAPTIVE


@dataclass(frozen=True)
class Standing:
    """Images that are still classified correctly: after each of an attack's parts, and by the final verdict (`count`)."""

    parts: dict[str, int]
    count: int
    warnings: list[str]


def attack(
    row: Annotated[str, typer.Argument(help="<submission>-<variant>, trained", autocompletion=row_names)],
    suite: Annotated[str, typer.Option(help="One of the track's, its development ones, or adaptive.")] = "quick",
    track: TrackOption = "digits",
    engine: EngineOption = None,
) -> None:
    """Try a suite of attacks on a trained row; prints what is left standing and keeps nothing."""
    n, clean, attacks = try_suite(track, row, suite, engine)
    table = Table("attack", "after each part", "standing", title=f"{row} on {track}, suite {suite}: not published")
    table.add_row("clean", "", f"{clean} of {n}")
    for name, standing in attacks.items():
        parts = ", ".join(f"{part} {left}" for part, left in standing.parts.items())
        table.add_row(name, parts, f"{standing.count} of {n}")
    console.print(table)
    for name, standing in attacks.items():
        for warning in standing.warnings:
            console.print(f"warning: {name}: {warning}")


def try_suite(track: str, name: str, suite: str, engine: Engine | None = None) -> tuple[int, int, dict[str, Standing]]:
    """Run one of the row's suites, or a development suite, on the weights in work/<track>/<row>/train.

    Killed and run again, it resumes after the images already done.

    Returns:
        The number of attacked images, the number that are right when clean, and the result of each attack.

    Raises:
        BenchmarkError: an unknown row or suite, a row that is not trained yet, or an attack that the harness refuses.
    """
    from benchmark.attacks.prediction import predict
    from benchmark.data.tensors import evaluation_images
    from benchmark.evaluation.run_attack import run_suite
    from benchmark.runtime.torch_setup import set_up
    from benchmark.sandbox.attack import contributed_attacks
    from benchmark.sandbox.model import evaluated_model

    def report(text: str) -> None:
        progress.print(f"{row.name}: {text}")

    row, progress = load_row(track, name), Console(stderr=True, highlight=False, soft_wrap=True)
    suites = {**row.track.development, **row.suites}
    if suite not in suites:
        raise BenchmarkError(f"{row.name} on {track} has no suite {suite!r}{near_miss(suite, suites)}")
    run, batch_size, attacks = run_settings().evaluate, row.track.evaluation.batch_size, {}
    device, used = set_up(run.device), engine or run.engine
    names = [spec.attack for spec in suites[suite]] if suite == ADAPTIVE else []
    with (
        contributed_attacks(row, names, device) as contributed,
        evaluated_model(row, device) as evaluated,
        scratch.locked(f"{track}/{row.name}/trial-{suite}", _inputs(row, suite, suites[suite], used)) as folder,
    ):
        images, labels = (tensor[: row.track.evaluation.attacked] for tensor in evaluation_images(row, device))
        clean = int(predict(evaluated.model, images, labels, batch_size).correct.sum())
        report(f"{clean} of {len(labels)} right when clean")
        for spec, state, after in run_suite(
            evaluated.model, images, labels, suites[suite], batch_size=batch_size, folder=folder, engine=used,
            report=report, brought=contributed, open_division=row.submission.division == "open",
        ):  # fmt: skip
            attacks[spec.id] = Standing(state.remaining, int(after.correct.sum()), state.warnings)
            report(f"{spec.id}: {attacks[spec.id].count} of {len(labels)} standing")
    return len(labels), clean, attacks


def _inputs(row: Row, suite: str, specs: Any, engine: Engine) -> dict[str, Any]:
    """Return everything that partial work depends on."""
    owner = row.submission.name if suite == ADAPTIVE else ""
    attacks = [methods.attack_file(spec.attack, owner) for spec in specs]
    return {
        "code": code.digests(Path("benchmark/evaluation/run_attack.py"), *row.method_files, *attacks),
        "suite": [spec.model_dump(mode="json") for spec in specs],
        "engine": engine,
        "evaluation": row.track.evaluation.model_dump(mode="json"),
        "model": row.settings.model,
        "weights": files.sha256_file(row.weights),
    }


def audit(
    row: Annotated[str, typer.Argument(help="<submission>-<variant>, or <submission> for all its certified rows")],
    track: TrackOption = "digits",
    images: Annotated[int, typer.Option(min=0, help="Certified images to try, evenly spread; 0 for all.")] = 0,
    restarts: Annotated[int, typer.Option(min=1, help="Random starts of each attack an image.")] = 32,
    seed: Annotated[int, typer.Option(min=0, help="Of all that is drawn.")] = 0,
) -> None:
    """Try hard to break a row's published certificates; exit status 1 if one breaks."""
    from benchmark.runtime.torch_setup import apart, set_up

    device = set_up(run_settings().evaluate.device)
    for name in certified_rows(track, row):
        result = apart(device, audit_row, track, name, images or None, restarts, seed)
        table = Table("audited", "tried or found", title=f"{name} on {track}: every certificate held")
        for field, value in result.model_dump().items():
            text = f"{value:.6f}" if isinstance(value, float) else str(value)
            table.add_row(field.replace("_", " "), ", ".join(value) if field == "attacks" else text)
        console.print(table)


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

    module = importlib.import_module(f"benchmark.certificates.{spec.name}")
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
        return audit.run(partial(module.certify, **spec.parameters), batch_size)
