"""`rvb attack`: one suite on a trained row, to look at. No DVC stage; it writes nothing but scratch that it removes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmark.commands.terminal import EngineOption, TrackOption, checked_engine, console
from benchmark.runtime import scratch
from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.specs.base import Frozen


class Trial(Frozen):
    """Counts of `n` images: right when clean; by attack, right after each of its parts, and by the final verdict."""

    n: int
    clean: int
    parts: dict[str, dict[str, int]]
    standing: dict[str, int]
    warnings: dict[str, list[str]]


def attack(
    row: Annotated[str, typer.Argument(help="<submission>-<variant>, trained")],
    suite: Annotated[str, typer.Option(help="One of the track's, its development ones, or adaptive.")] = "quick",
    track: TrackOption = "digits",
    engine: EngineOption = "",
) -> None:
    """Try a suite of attacks on a trained row; prints what is left standing and keeps nothing."""
    progress = Console(stderr=True, highlight=False, soft_wrap=True)
    trial = try_suite(track, row, suite, progress.print, checked_engine(engine))
    table = Table("attack", "after each part", "standing", title=f"{row} on {track}, suite {suite}: not published")
    table.add_row("clean", "", f"{trial.clean} of {trial.n}")
    for name, count in trial.standing.items():
        parts = ", ".join(f"{part} {left}" for part, left in trial.parts[name].items())
        table.add_row(name, parts, f"{count} of {trial.n}")
    console.print(table)
    for name, found in trial.warnings.items():
        for warning in found:
            console.print(f"warning: {name}: {warning}")


def try_suite(track: str, name: str, suite: str, report: Callable[[str], None], engine: str = "") -> Trial:
    """Runs a suite of the row's, or of the track's development, on the weights in work/<track>/<row>/train.

    `engine` is that of params.yaml unless given. Killed and run again, it goes on from the images already done.

    Raises:
        BenchmarkError: unknown row or suite, a row that is not trained yet, or an attack that the harness refuses.
    """
    from benchmark.loading.rows import entry_of_row
    from benchmark.loading.run_settings import run_settings
    from benchmark.loading.trained import evaluation_images, trained_model
    from benchmark.runtime.torch_setup import set_up
    from benchmark.stages.attack import run_suite, suite_inputs
    from benchmark.stages.base import evaluation_inputs
    from benchmark.verdicts.prediction import judge

    row = entry_of_row(track, name)
    suites = {**row.track.development, **row.suites}
    if suite not in suites:
        raise BenchmarkError(f"{row.row} on {track} has no suite {suite!r}{near_miss(suite, suites)}")
    run = run_settings().evaluate
    device, engine = set_up(run.device), engine or run.engine
    model = trained_model(row, device)
    images, labels = evaluation_images(row, device)
    clean = judge(model, images, labels, row.track.evaluation.batch_size).right
    report(f"{row.row}: {int(clean.sum())} of {len(labels)} right when clean")
    inputs = evaluation_inputs(row, f"attack-{suite}", suite_inputs(row, suite, engine))
    stage = f"{track}/{row.row}/trial-{suite}"
    parts, standing, warnings = {}, {}, {}
    with scratch.locked(stage, inputs, scratch.FOLDER / stage / "no result is kept") as folder:
        assert folder is not None
        for spec, state, after in run_suite(
            row, suite, model, images, labels, folder, engine, lambda text: report(f"{row.row}: {text}")
        ):
            parts[spec.id], standing[spec.id] = state.remaining, int(after.right.sum())
            warnings[spec.id] = state.warnings
            report(f"{row.row}: {spec.id}: {standing[spec.id]} of {len(labels)} standing")
    return Trial(n=len(labels), clean=int(clean.sum()), parts=parts, standing=standing, warnings=warnings)
