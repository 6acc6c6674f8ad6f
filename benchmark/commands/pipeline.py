"""Commands of the pipeline: `rvb repro`, `rvb pipeline`, `rvb stage`. torch is imported by the calls that need it."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from benchmark.commands.terminal import EngineOption, TrackOption, checked_engine, console
from benchmark.runtime.errors import BenchmarkError, near_miss

STAGES = ("data", "train", "attack", "reliability", "certify", "smooth", "corrupt", "pictures", "collect")


def repro(
    track: TrackOption = "digits",
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Rows at a time.")] = os.cpu_count() or 1,
) -> None:
    """Train, attack and certify every row that changed, then render the leaderboard."""
    from benchmark.pipeline.repro import repro as run

    run(track, jobs, console.print)


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

        attack_row(*names, suite, checked_engine(engine))
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
