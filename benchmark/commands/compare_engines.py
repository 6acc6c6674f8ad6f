"""`rvb compare-engines`: both AutoAttack engines on one trained row. No stage of the pipeline, and writes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmark.commands.completion import row_names
from benchmark.commands.terminal import TrackOption, console
from benchmark.runtime.errors import BenchmarkError

if TYPE_CHECKING:
    from benchmark.evaluation.engine_comparison import Comparison


def compare_engines(
    row: Annotated[str, typer.Argument(help="<submission>-<variant>, trained", autocompletion=row_names)],
    track: TrackOption = "digits",
    images: Annotated[int, typer.Option(min=0, help="The first so many evaluation images; 0 for all.")] = 0,
    seed: Annotated[int | None, typer.Option(min=0, help="Of both engines (default: the track's).")] = None,
) -> None:
    """Run both AutoAttack engines on a row: verdicts, disagreements and times."""
    for found in compare_row(track, row, images or None, seed):
        print_comparison(found, f"{row} on {track}, {found.spec.threat.label}, seed {found.spec.seed}")


def compare_row(track: str, name: str, count: int | None, seed: int | None) -> list[Comparison]:
    """Compares the engines on a trained row, under each AutoAttack of the track.

    Args:
        count: only the first so many of the track's evaluation images.
        seed: of both engines, in place of the track's.

    Raises:
        BenchmarkError: unknown row, one not trained yet, more images than the track has, or a track without AutoAttack.
    """
    from benchmark.evaluation import engine_comparison
    from benchmark.loading.judged import judged_model
    from benchmark.loading.rows import load_row
    from benchmark.loading.run_settings import run_settings
    from benchmark.loading.trained import evaluation_images
    from benchmark.runtime.torch_setup import set_up

    row, progress = load_row(track, name), Console(stderr=True, soft_wrap=True)
    specs = [spec for suite in row.track.suites.values() for spec in suite if spec.attack == "autoattack"]
    if not specs:
        raise BenchmarkError(f"track {track} runs no AutoAttack; there are no engines to compare")
    most = row.track.evaluation.attacked or row.track.evaluation.images
    if count is not None and count > most:
        raise BenchmarkError(f"track {track} has {most} evaluation images to attack; {count} are too many")
    device = set_up(run_settings().evaluate.device)

    def report(text: str) -> None:
        progress.print(f"{row.name}: {text}", highlight=False)

    with judged_model(row, device) as judged:
        images, labels = (one[: row.track.evaluation.attacked] for one in evaluation_images(row, device))
        return [
            engine_comparison.compare(
                judged.model,
                images[:count],
                labels[:count],
                spec if seed is None else spec.model_copy(update={"seed": seed}),
                batch_size=row.track.evaluation.batch_size,
                report=report,
            )
            for spec in specs
        ]


def print_comparison(found: Comparison, title: str) -> None:
    """Both engines, part by part, then each image on which they differ."""
    reference, fast = found.runs["reference"], found.runs["fast"]
    table = Table("after", "robust: reference", "fast", "seconds: reference", "fast", "ratio", title=title)
    for name in fast.seconds:
        times = reference.seconds[name], fast.seconds[name]
        counts = f"{reference.remaining[name]}", f"{fast.remaining[name]}"
        table.add_row(name, *counts, *(f"{t:.2f}" for t in times), _ratio(*times))
    total = sum(reference.seconds.values()), sum(fast.seconds.values())
    counts = f"{int(reference.robust.sum())}", f"{int(fast.robust.sum())}"
    table.add_row("all", *counts, *(f"{t:.2f}" for t in total), _ratio(*total))
    console.print(table)
    n, differing = len(found.clean), found.disagreements
    console.print(
        f"the same verdict on {n - len(differing)} of {n} images ({int((found.clean > 0).sum())} right when clean)"
    )
    for d in differing:
        console.print(
            f"image {d.image}: only the {d.engine} engine breaks it, with {d.component}: "
            f"margin {d.margin:.3g} there, {d.clean_margin:.3g} clean"
        )


def _ratio(reference: float, fast: float) -> str:
    return f"{reference / fast:.2f}" if min(reference, fast) > 0.005 else ""  # not of nothing
