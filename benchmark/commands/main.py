"""The command `rvb`: thin, arguments to calls. torch is imported by the calls that need it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.console import Console
from rich.table import Table

from benchmark.commands import exchange
from benchmark.runtime import errors
from benchmark.runtime.errors import BenchmarkError, near_miss

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Clean, attacked and certified accuracy of vision transformers, per image, with evidence.",
)
console = Console(highlight=False, soft_wrap=True)
TrackOption = Annotated[str, typer.Option(help="Which comparison.")]
EngineOption = Annotated[str, typer.Option(help="Of AutoAttack: fast or reference (default: params.yaml's).")]
STAGES = ("data", "train", "attack", "reliability", "certify", "smooth", "corrupt", "pictures", "collect")


def main() -> None:
    errors.run(_start)


def _start() -> None:
    _to_root()
    app()


def _to_root() -> None:
    """Works from the repository's root, wherever inside it the command was typed."""
    if any(flag in sys.argv for flag in ("--help", "-h")):
        return
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / "submissions").is_dir() and (folder / "params.yaml").is_file():
            os.chdir(folder)
            return
    raise BenchmarkError(
        "run rvb inside a checkout of robust-vit-bench; no submissions/ and params.yaml found here or above"
    )


@app.command()
def repro(
    track: TrackOption = "digits",
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Rows at a time.")] = os.cpu_count() or 1,
) -> None:
    """Train, attack and certify every row that changed, then render the leaderboard."""
    from benchmark.pipeline.generate.repro import repro as run

    run(track, jobs, console.print)


@app.command()
def pipeline(
    check: Annotated[bool, typer.Option("--check", help="Change nothing; fail if a file is stale.")] = False,
) -> None:
    """Write the DVC stages from the submissions."""
    from benchmark.pipeline import generate as stages

    if check:
        stale = stages.stale()
        if stale:
            raise BenchmarkError(f"{', '.join(map(str, stale))} no longer fit the submissions; run `rvb pipeline`")
        console.print("the pipeline fits the submissions")
        return
    changed = stages.write()
    console.print("\n".join(changed) or "the pipeline fits the submissions")


@app.command(name="list")
def list_rows() -> None:
    """List tracks, the rows that enter them, and the studies on them."""
    from benchmark.loading import submissions, tracks
    from benchmark.studies import grids

    loaded = grids.load_all()
    for name in tracks.names():
        rows = submissions.rows(name)
        console.print(f"[bold]{name}[/]  {tracks.load(name).title} (version {tracks.load(name).version})")
        for submission, variant in rows:
            console.print(f"  {submission.name}-{variant}  {submission.variants[variant].title}")
        if not rows:
            console.print("  no submission yet")
        for grid in [grid for grid in loaded if grid.track.name == name]:
            console.print(f"  study {grid.submission.name} {grid.name}  {grid.study.title} ({grid.study.source})")


@app.command()
def show(row: Annotated[str, typer.Argument(help="<submission>-<variant>")], track: TrackOption = "digits") -> None:
    """Print the numbers of one row."""
    record = exchange.record(track, row)
    table = Table("number", "percent", "95% interval", "images", title=f"{record.title} on {track}")
    from benchmark.results.headline import headline

    for name, p in headline(record).items():
        table.add_row(name, f"{100 * p.value:.1f}", f"{100 * p.low:.1f}–{100 * p.high:.1f}", f"{p.count} of {p.n}")
    console.print(table)
    for attack in record.attacks:
        for warning in attack.warnings:
            console.print(f"warning: {attack.id}: {warning}")
    if record.training and record.training.overfitting and record.training.overfitting.found:
        console.print(f"warning: training: {record.training.overfitting.words}")
    for doubt in record.reliability.failing if record.reliability else ():
        console.print(f'warning: doubt about "{doubt.name}": {doubt.measured}. {doubt.explanation}')


@app.command()
def audit(
    row: Annotated[str, typer.Argument(help="<submission>-<variant>, or <submission> for all its certified rows")],
    track: TrackOption = "digits",
    images: Annotated[int, typer.Option(min=0, help="Certified images to try, evenly spread; 0 for all.")] = 0,
    restarts: Annotated[int, typer.Option(min=1, help="Random starts of each attack an image.")] = 32,
    seed: Annotated[int, typer.Option(min=0, help="Of all that is drawn.")] = 0,
) -> None:
    """Try hard to break a row's published certificates; exit status 1 if one breaks."""
    from benchmark.commands.audit import audit_row, certified_rows

    for name in certified_rows(track, row):
        result = audit_row(track, name, images or None, restarts, seed)
        table = Table("audited", "tried or found", title=f"{name} on {track}: every certificate held")
        for field, value in result.model_dump().items():
            text = (
                f"{value:.6f}" if isinstance(value, float) else ", ".join(value) if field == "attacks" else str(value)
            )
            table.add_row(field.replace("_", " "), text)
        console.print(table)


@app.command()
def compare_engines(
    row: Annotated[str, typer.Argument(help="<submission>-<variant>, trained")],
    track: TrackOption = "digits",
    images: Annotated[int, typer.Option(min=0, help="The first so many evaluation images; 0 for all.")] = 0,
    seed: Annotated[int | None, typer.Option(min=0, help="Of both engines (default: the track's).")] = None,
) -> None:
    """Run both AutoAttack engines on a row: verdicts, disagreements and times."""
    from benchmark.commands.compare_engines import compare_row
    from benchmark.commands.printed import print_comparison

    for found in compare_row(track, row, images or None, seed):
        print_comparison(console, found, f"{row} on {track}, {found.spec.threat.label}, seed {found.spec.seed}")


@app.command()
def attack(
    row: Annotated[str, typer.Argument(help="<submission>-<variant>, trained")],
    suite: Annotated[str, typer.Option(help="One of the track's, its development ones, or adaptive.")] = "quick",
    track: TrackOption = "digits",
    engine: EngineOption = "",
) -> None:
    """Try a suite of attacks on a trained row; prints what is left standing and keeps nothing."""
    from benchmark.commands.attack import try_suite

    progress = Console(stderr=True, highlight=False, soft_wrap=True)
    preview = try_suite(track, row, suite, progress.print, _engine(engine))
    table = Table("attack", "after each part", "standing", title=f"{row} on {track}, suite {suite}: not published")
    table.add_row("clean", "", f"{preview.clean} of {preview.n}")
    for name, count in preview.robust.items():
        parts = ", ".join(f"{part} {left}" for part, left in preview.parts[name].items())
        table.add_row(name, parts, f"{count} of {preview.n}")
    console.print(table)
    for name, found in preview.warnings.items():
        for warning in found:
            console.print(f"warning: {name}: {warning}")


@app.command()
def study(
    submission: Annotated[str, typer.Argument(help="<submission>")],
    name: Annotated[str, typer.Argument(help="One of its studies.")],
) -> None:
    """Do a paper's table or figure again: train and measure what is not done yet, then print it."""
    from benchmark.commands.printed import print_study
    from benchmark.pipeline.generate.repro import repro_study
    from benchmark.studies.published import collect_study

    print_study(console, collect_study(repro_study(submission, name, console.print)))


@app.command()
def publish(
    row: Annotated[str, typer.Argument(help="<submission>-<variant>, or <submission> with --study")],
    track: TrackOption = "digits",
    study: Annotated[str, typer.Option(help="Publish this study of the submission; its track is its own.")] = "",
) -> None:
    """Copy a row's Record, or a study, to leaderboard/results/, where git and reviewers see it."""
    from benchmark.runtime import files
    from benchmark.runtime.paths import PUBLISHED
    from benchmark.specs.base import to_json
    from benchmark.studies import grids
    from benchmark.studies.published import collect_study

    if study:
        grid = grids.load(row, study)
        path, text = PUBLISHED / grid.track.name / "studies" / f"{grid.id}.json", to_json(collect_study(grid))
    else:
        path, text = PUBLISHED / track / f"{row}.json", to_json(exchange.record(track, row))
    files.write(path, text)
    console.print(f"wrote {path}; commit it")


app.command()(exchange.import_robustbench)
app.command()(exchange.export_robustbench)


@app.command()
def stage(
    name: Annotated[
        str,
        typer.Argument(help="data, train, attack-<suite>, reliability, certify, smooth, corrupt, pictures or collect."),
    ],
    row: Annotated[str, typer.Argument(help="<submission>-<variant>; not for data")] = "",
    track: TrackOption = "digits",
    engine: EngineOption = "",
) -> None:
    """Run one stage by hand, outside DVC (to debug a submission)."""
    kind, _, suite = name.partition("-")
    if kind not in STAGES:
        raise BenchmarkError(f"unknown stage {name!r}{near_miss(kind, STAGES)}")
    if (kind == "data") == bool(row):
        raise BenchmarkError(
            "the data stage takes no row" if row else f"stage {name} needs a row: <submission>-<variant>"
        )
    if kind == "attack" and not suite:
        raise BenchmarkError("name the suite: attack-<suite>, such as attack-standard")
    if engine and kind != "attack":
        raise BenchmarkError("only attack stages have engines")
    if kind == "data":
        from benchmark.stages.data import prepare_data

        prepare_data(track)
        return
    from benchmark.loading.rows import entry_of_row

    chosen = entry_of_row(track, row)
    names = (track, chosen.submission.name, chosen.variant)
    if kind == "train":
        if chosen.settings.weights:
            from benchmark.stages.pretrained import pretrained_row as train_row
        else:
            from benchmark.stages.train import train_row

        train_row(*names)
    elif kind == "attack":
        from benchmark.stages.attack import attack_row

        attack_row(*names, suite, _engine(engine))
    elif kind == "reliability":
        from benchmark.stages.reliability import reliability_row

        reliability_row(*names)
    elif kind == "certify":
        from benchmark.stages.certify import certify_row

        certify_row(*names)
    elif kind == "smooth":
        from benchmark.stages.smooth import smooth_row

        smooth_row(*names)
    elif kind == "corrupt":
        from benchmark.stages.corrupt import corrupt_row

        corrupt_row(*names)
    elif kind == "pictures":
        from benchmark.stages.pictures import pictures_row

        pictures_row(*names)
    else:
        from benchmark.stages.collect import collect_row

        collect_row(*names)


def _engine(name: str) -> str:
    from benchmark.specs.threat import Engine

    known = get_args(Engine)
    if name and name not in known:
        raise BenchmarkError(f"unknown engine {name!r}{near_miss(name, known)}")
    return name


if __name__ == "__main__":
    main()
