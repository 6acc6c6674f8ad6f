"""`rvb attack`: one suite on a trained row, to look at. No DVC stage; it writes nothing but scratch that it removes."""

from __future__ import annotations

from collections.abc import Callable

from benchmark.loading.rows import entry_of_row
from benchmark.loading.run_settings import run_settings
from benchmark.loading.trained import evaluation_images, trained_model
from benchmark.runtime import scratch
from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.runtime.torch_setup import set_up
from benchmark.specs.base import Frozen
from benchmark.stages.attack import run_suite, suite_inputs
from benchmark.stages.base import evaluation_inputs
from benchmark.verdicts.prediction import predict


class AttackPreview(Frozen):
    """Counts of `n` images: right when clean; by attack, right after each of its parts, and by the final verdict."""

    n: int
    clean: int
    parts: dict[str, dict[str, int]]
    robust: dict[str, int]
    warnings: dict[str, list[str]]


def try_suite(track: str, name: str, suite: str, report: Callable[[str], None], engine: str = "") -> AttackPreview:
    """Runs a suite of the row's, or of the track's development, on the weights in work/<track>/<row>/train.

    `engine` is that of params.yaml unless given. Killed and run again, it goes on from the images already done.

    Raises:
        BenchmarkError: unknown row or suite, a row that is not trained yet, or an attack that the harness refuses.
    """
    row = entry_of_row(track, name)
    suites = {**row.track.development, **row.suites}
    if suite not in suites:
        raise BenchmarkError(f"{row.row} on {track} has no suite {suite!r}{near_miss(suite, suites)}")
    run = run_settings().evaluate
    device, engine = set_up(run.device), engine or run.engine
    model = trained_model(row, device)
    images, labels = evaluation_images(row, device)
    clean = predict(model, images, labels, row.track.evaluation.batch_size).correct
    report(f"{row.row}: {int(clean.sum())} of {len(labels)} right when clean")
    inputs = evaluation_inputs(row, f"attack-{suite}", suite_inputs(row, suite, engine))
    stage = f"{track}/{row.row}/trial-{suite}"
    parts, robust, warnings = {}, {}, {}
    with scratch.locked(stage, inputs, scratch.FOLDER / stage / "no result is kept") as folder:
        assert folder is not None
        for spec, state, after in run_suite(
            row, suite, model, images, labels, folder, engine, lambda text: report(f"{row.row}: {text}")
        ):
            parts[spec.id], robust[spec.id] = state.remaining, int(after.correct.sum())
            warnings[spec.id] = state.warnings
            report(f"{row.row}: {spec.id}: {robust[spec.id]} of {len(labels)} standing")
    return AttackPreview(n=len(labels), clean=int(clean.sum()), parts=parts, robust=robust, warnings=warnings)
