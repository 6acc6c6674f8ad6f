"""`rvb attack`: one suite on a trained row, to look at. No DVC stage; it writes nothing but scratch that it removes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmark.commands.terminal import EngineOption, TrackOption, console, row_names
from benchmark.loading import methods
from benchmark.loading.rows import Row, load_row
from benchmark.loading.run_settings import run_settings
from benchmark.runtime import code, files, scratch
from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.specs.threat import Engine
from benchmark.specs.track import ADAPTIVE


@dataclass(frozen=True)
class Standing:
    """Images still right under one attack: after each of its parts, and by the final verdict (`count`)."""

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
    """Run a suite of the row's, or of the track's development, on the weights in work/<track>/<row>/train. Return how many
    images are attacked, how many are right when clean, and what stands under each attack.

    Killed and run again, it goes on from the images already done. A BenchmarkError for an unknown row or suite, a row that is
    not trained yet, or an attack that the harness refuses.
    """
    from benchmark.evaluation.suite import run_suite
    from benchmark.loading.judged import judged_model
    from benchmark.loading.trained import evaluation_images
    from benchmark.loading.walled_attack import brought_attacks
    from benchmark.runtime.torch_setup import set_up
    from benchmark.verdicts.prediction import predict

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
        brought_attacks(row, names, device) as brought,
        judged_model(row, device) as judged,
        scratch.locked(f"{track}/{row.name}/trial-{suite}", _inputs(row, suite, suites[suite], used)) as folder,
    ):
        images, labels = (tensor[: row.track.evaluation.attacked] for tensor in evaluation_images(row, device))
        clean = int(predict(judged.model, images, labels, batch_size).correct.sum())
        report(f"{clean} of {len(labels)} right when clean")
        for spec, state, after in run_suite(
            judged.model, images, labels, suites[suite], batch_size=batch_size, folder=folder, engine=used,
            report=report, brought=brought, open_division=row.submission.division == "open",
        ):  # fmt: skip
            attacks[spec.id] = Standing(state.remaining, int(after.correct.sum()), state.warnings)
            report(f"{spec.id}: {attacks[spec.id].count} of {len(labels)} standing")
    return len(labels), clean, attacks


def _inputs(row: Row, suite: str, specs: Any, engine: Engine) -> dict[str, Any]:
    """All that partial work depends on."""
    owner = row.submission.name if suite == ADAPTIVE else ""
    attacks = [methods.attack_file(spec.attack, owner) for spec in specs]
    return {
        "code": code.digests(Path("benchmark/evaluation/suite.py"), *row.method_files, *attacks),
        "suite": [spec.model_dump(mode="json") for spec in specs],
        "engine": engine,
        "evaluation": row.track.evaluation.model_dump(mode="json"),
        "model": row.settings.model,
        "weights": files.sha256_file(row.weights),
    }
