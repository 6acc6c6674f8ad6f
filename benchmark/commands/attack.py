"""`rvb attack`: one suite on a trained row, to look at. No DVC stage; it writes nothing but scratch that it removes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmark.commands.completion import row_names
from benchmark.commands.terminal import EngineOption, TrackOption, console
from benchmark.runtime import scratch
from benchmark.runtime.errors import BenchmarkError, near_miss

if TYPE_CHECKING:
    from benchmark.loading.rows import Row
    from benchmark.specs.threat import AttackSpec, Engine


@dataclass(frozen=True)
class AttackPreview:
    """Counts of `n` images: right when clean; by attack, right after each of its parts, and by the final verdict."""

    n: int
    clean: int
    parts: dict[str, dict[str, int]]
    robust: dict[str, int]
    warnings: dict[str, list[str]]


def attack(
    row: Annotated[str, typer.Argument(help="<submission>-<variant>, trained", autocompletion=row_names)],
    suite: Annotated[str, typer.Option(help="One of the track's, its development ones, or adaptive.")] = "quick",
    track: TrackOption = "digits",
    engine: EngineOption = None,
) -> None:
    """Try a suite of attacks on a trained row; prints what is left standing and keeps nothing."""
    progress = Console(stderr=True, highlight=False, soft_wrap=True)
    trial = try_suite(track, row, suite, progress.print, engine)
    table = Table("attack", "after each part", "standing", title=f"{row} on {track}, suite {suite}: not published")
    table.add_row("clean", "", f"{trial.clean} of {trial.n}")
    for name, count in trial.robust.items():
        parts = ", ".join(f"{part} {left}" for part, left in trial.parts[name].items())
        table.add_row(name, parts, f"{count} of {trial.n}")
    console.print(table)
    for name, found in trial.warnings.items():
        for warning in found:
            console.print(f"warning: {name}: {warning}")


def try_suite(
    track: str, name: str, suite: str, report: Callable[[str], None], engine: Engine | None = None
) -> AttackPreview:
    """Runs a suite of the row's, or of the track's development, on the weights in work/<track>/<row>/train.

    `engine` is that of params.yaml unless given. Killed and run again, it goes on from the images already done.

    Raises:
        BenchmarkError: unknown row or suite, a row that is not trained yet, or an attack that the harness refuses.
    """
    from benchmark.evaluation.run_attack import run_suite
    from benchmark.loading.rows import load_row
    from benchmark.loading.run_settings import run_settings
    from benchmark.loading.trained import evaluation_images
    from benchmark.runtime.torch_setup import set_up
    from benchmark.sandbox.attack import contributed_attacks
    from benchmark.sandbox.model import evaluated_model
    from benchmark.specs.track import ADAPTIVE
    from benchmark.verdicts.prediction import predict

    row = load_row(track, name)
    suites = {**row.track.development, **row.suites}
    if suite not in suites:
        raise BenchmarkError(f"{row.name} on {track} has no suite {suite!r}{near_miss(suite, suites)}")
    run = run_settings().evaluate
    device, used = set_up(run.device), engine or run.engine
    adaptive = suite == ADAPTIVE
    names = [spec.attack for spec in suites[suite]] if adaptive else []
    batch_size = row.track.evaluation.batch_size
    owner = row.submission.name if adaptive else ""
    with (
        contributed_attacks(row, names, device) as brought,
        evaluated_model(row, device) as judged,
        scratch.locked(f"{track}/{row.name}/trial-{suite}", _inputs(row, suites[suite], owner, used)) as folder,
    ):
        images, labels = (one[: row.track.evaluation.attacked] for one in evaluation_images(row, device))
        clean = int(predict(judged.model, images, labels, batch_size).correct.sum())
        report(f"{row.name}: {clean} of {len(labels)} right when clean")
        parts, robust, warnings = {}, {}, {}
        for spec, state, after in run_suite(
            judged.model, images, labels, suites[suite], batch_size=batch_size, folder=folder,
            engine=used, report=lambda text: report(f"{row.name}: {text}"), brought=brought,
            open_division=row.submission.division == "open",
        ):  # fmt: skip
            parts[spec.id], robust[spec.id] = state.remaining, int(after.correct.sum())
            warnings[spec.id] = state.warnings
            report(f"{row.name}: {spec.id}: {robust[spec.id]} of {len(labels)} standing")
    return AttackPreview(len(labels), clean, parts, robust, warnings)


def _inputs(row: Row, specs: Sequence[AttackSpec], owner: str, engine: Engine) -> dict[str, Any]:
    """All that partial work depends on."""
    from benchmark.loading import methods
    from benchmark.runtime import code, files

    attacks = [methods.attack_file(spec.attack, owner) for spec in specs]
    return {
        "code": code.digests(Path("benchmark/evaluation/run_attack.py"), *row.method_files, *attacks),
        "suite": [spec.model_dump(mode="json") for spec in specs],
        "engine": engine,
        "evaluation": row.track.evaluation.model_dump(mode="json"),
        "model": row.settings.model,
        "weights": files.sha256_file(row.weights),
    }
