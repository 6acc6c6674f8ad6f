"""`rvb publish`: Records and studies that git keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchmark.commands import baselines
from benchmark.commands.terminal import TrackOption, console
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import PUBLISHED

if TYPE_CHECKING:
    from benchmark.results.regression import Built


def publish(
    row: Annotated[str, typer.Argument(help="<submission>-<variant>; with --study: whose, as `rvb study` has it")] = "",
    track: TrackOption = "digits",
    study: Annotated[str, typer.Option(help="Publish this study; but for `seeds` its track is its own.")] = "",
    every: Annotated[bool, typer.Option("--all", help="Publish every row of the track, or none.")] = False,
    reason: Annotated[
        str,
        typer.Option(help="Why numbers that are published already change; it goes into the Record and CHANGELOG.md."),
    ] = "",
) -> None:
    """Copy a row's Record, or a study, to leaderboard/results/, where git and reviewers see it."""
    if every and (row or study):
        raise BenchmarkError("--all publishes every row of the track; leave out the row and --study")
    if every:
        publish_rows(track, all_rows(track), reason)
    elif not row:
        words = "the submission whose study it is" if study else "a row, <submission>-<variant>, or --all"
        raise BenchmarkError(f"name what to publish: {words}")
    elif study:
        _publish_study(row, study, track)
    else:
        from benchmark.loading.rows import load_row

        publish_rows(track, [load_row(track, row).name], reason)


def default_rows(track: str) -> list[str]:
    """The rows that `rvb repro` builds."""
    from benchmark.loading import tracks

    tracks.load(track)
    path = Path("pipelines") / track / "rows.json"
    if not path.exists():
        raise BenchmarkError(f"no submission enters track {track!r} yet; there is nothing to publish or compare")
    return files.read_json(path)


def all_rows(track: str) -> list[str]:
    """Those that say `default: false` too."""
    path = Path("pipelines") / track / "_all" / "rows.json"
    return files.read_json(path) if path.exists() else default_rows(track)


def publish_rows(track: str, rows: list[str], reason: str) -> None:
    """All of them or none: what is published moves only for a reason that is given."""
    from benchmark.pipeline import costs
    from benchmark.results import reproduced

    found = {row: baselines.built_row(track, row) for row in rows}
    built = {row: one for row, one in found.items() if one is not None}
    if missing := [row for row in rows if row not in built]:
        default = all(row in default_rows(track) for row in missing)
        again = f"rvb repro --track {track}" + ("" if default else " --all")
        raise BenchmarkError(f"not built yet: {', '.join(missing)}; run `{again}`; nothing published")
    if bare := [row for row, one in built.items() if one.images is None]:
        raise BenchmarkError(
            f"built by older code, without images: {', '.join(bare)}; run `rvb repro`; nothing published"
        )
    if fault := baselines.changed_rules(track):
        raise BenchmarkError(fault)
    kept = {row: baselines.published_row(track, row) for row in rows}
    moved = {row: words for row, one in built.items() if (words := _moved(kept[row], one))}
    if moved and not reason:
        first = next(iter(moved))
        more = f" and {len(moved) - 1} rows more" if len(moved) > 1 else ""
        raise BenchmarkError(f"{first} would change ({moved[first]}){more}; say why: --reason '...'; nothing published")
    for row, one in built.items():
        before = kept[row]
        why = reason if row in moved else before.record.reason if before else ""
        built[row] = replace(one, record=one.record.model_copy(update={"reason": why}))
    reproduced.update(PUBLISHED / track, {}, forget=moved)
    for path in (*baselines.write(track, built), costs.publish(track, built)):
        console.print(f"wrote {path}; commit it")
    if moved:
        baselines.note_reason(track, list(moved), reason)
        console.print(f"wrote {baselines.CHANGELOG}: why {len(moved)} rows changed; commit it")


def _moved(before: Built | None, built: Built) -> str:
    """The first number, fact or digest that is not as published, in words; "" where all are, or it is published first."""
    from benchmark.results.regression import compare_row

    if before is None:
        return ""
    found = compare_row(before, built, alike=True)
    if found.problem:
        return f"it {found.problem.partition(';')[0]}"
    return next((f"{one.metric}: {one.published} to {one.built}" for one in found.outside), "")


def _publish_study(owner: str, name: str, track: str) -> None:
    from benchmark.results import reproduced
    from benchmark.specs.base import to_json
    from benchmark.studies import grids
    from benchmark.studies.published import collect_study

    grid = grids.load(*grids.split_id(f"{owner}-{name}"), track)
    path = PUBLISHED / grid.track.name / "studies" / f"{grid.id}.json"
    files.write(path, to_json(collect_study(grid)))
    reproduced.update(PUBLISHED / grid.track.name, {}, forget=[grid.id])
    console.print(f"wrote {path}; commit it")
