"""`rvb publish` and `rvb regress`: Records and studies that git keeps, and what was built held against them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from benchmark.commands.rows import built_record, read_record
from benchmark.commands.terminal import TrackOption, console
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.runtime.paths import PUBLISHED, WORK

if TYPE_CHECKING:
    from benchmark.results.record import Record
    from benchmark.results.regression import RowComparison

MACHINES = "machine.json"  # beside the Records: on what each row was published


def publish(
    row: Annotated[str, typer.Argument(help="<submission>-<variant>, or <submission> with --study")] = "",
    track: TrackOption = "digits",
    study: Annotated[str, typer.Option(help="Publish this study of the submission; its track is its own.")] = "",
    every: Annotated[bool, typer.Option("--all", help="Publish every row of the track, or none.")] = False,
) -> None:
    """Copy a row's Record, or a study, to leaderboard/results/, where git and reviewers see it."""
    if every and (row or study):
        raise BenchmarkError("--all publishes every row of the track; leave out the row and --study")
    if every:
        _publish_rows(track, _every_record(track))
    elif not row:
        words = "the submission whose study it is" if study else "a row, <submission>-<variant>, or --all"
        raise BenchmarkError(f"name what to publish: {words}")
    elif study:
        _publish_study(row, study)
    else:
        _publish_rows(track, [built_record(track, row)])


def regress(
    rows: Annotated[list[str] | None, typer.Argument(help="<submission>-<variant> (default: every row).")] = None,
    track: TrackOption = "digits",
) -> None:
    """Compare the rows just built with their published Records; exit status 1 if one differs more than is allowed."""
    from benchmark.loading import tracks
    from benchmark.results.headline import headline_names
    from benchmark.results.regression import RULE, compare_rows
    from benchmark.runtime.machine import machine

    default, folder = _default_rows(track), PUBLISHED / track
    known = sorted({*default, *_all_rows(track), *(path.stem for path in folder.glob("*-*.json"))})
    for row in rows or ():
        if row not in known:
            raise BenchmarkError(f"{track} has no row {row!r}{near_miss(row, known)}")
    chosen, again = rows or known, "bring it back with git, or publish it again"
    published = {row: read_record(path, again) for row in chosen if (path := folder / f"{row}.json").exists()}
    built = {row: read_record(path) for row in chosen if (path := record_file(track, row)).exists()}
    if not built and not rows:
        raise BenchmarkError(f"nothing is built here to compare; run `rvb repro --track {track}` first")
    found = compare_rows(published, built, read_machines(folder / MACHINES), machine(), rows or default)
    console.print(f"Rule: {RULE}.")
    headline = {*headline_names(tracks.load(track))}
    for one in found:
        _print_row(one, headline)
    failed = [one.row for one in found if one.failed]
    if failed:
        raise BenchmarkError(
            f"{len(failed)} of {len(found)} rows are not what was published: {', '.join(failed)}; "
            "find out why, or publish them anew"
        )
    console.print(f"{len(found)} rows are what was published")


def record_file(track: str, row: str) -> Path:
    return WORK / track / row / "record" / "record.json"


def read_machines(path: Path) -> dict[str, dict[str, str]]:
    """On what each row was published; empty where no row was.

    Raises:
        BenchmarkError: the file is damaged.
    """
    if not path.exists():
        return {}
    again = "bring it back with git, or delete it and publish the rows again"
    content = files.read_json(path, again)
    if not isinstance(content, dict) or not all(isinstance(one, dict) for one in content.values()):
        raise BenchmarkError(f"{path} holds no machines by row; {again}")
    return content


def _default_rows(track: str) -> list[str]:
    """The rows that `rvb repro` builds."""
    from benchmark.loading import tracks

    tracks.load(track)
    path = Path("pipelines") / track / "rows.json"
    if not path.exists():
        raise BenchmarkError(f"no submission enters track {track!r} yet; there is nothing to publish or compare")
    return files.read_json(path)


def _all_rows(track: str) -> list[str]:
    """Those that say `default: false` too."""
    path = Path("pipelines") / track / "_all" / "rows.json"
    return files.read_json(path) if path.exists() else _default_rows(track)


def _every_record(track: str) -> list[Record]:
    default, rows = _default_rows(track), _all_rows(track)
    missing = [row for row in rows if not record_file(track, row).exists()]
    if missing:
        again = f"rvb repro --track {track}" + ("" if {*missing} & {*default} == {*missing} else " --all")
        raise BenchmarkError(f"not built yet: {', '.join(missing)}; run `{again}`; nothing published")
    return [read_record(record_file(track, row)) for row in rows]


def _publish_rows(track: str, records: list[Record]) -> None:
    from benchmark.runtime.machine import machine
    from benchmark.specs.base import to_json

    folder = PUBLISHED / track
    machines = read_machines(folder / MACHINES) | {record.row: machine() for record in records}
    for record in records:
        path = folder / f"{record.row}.json"
        files.write(path, to_json(record))
        console.print(f"wrote {path}; commit it")
    files.write_json(folder / MACHINES, machines)


def _publish_study(submission: str, name: str) -> None:
    from benchmark.specs.base import to_json
    from benchmark.studies import grids
    from benchmark.studies.published import collect_study

    grid = grids.load(submission, name)
    path = PUBLISHED / grid.track.name / "studies" / f"{grid.id}.json"
    files.write(path, to_json(collect_study(grid)))
    console.print(f"wrote {path}; commit it")


def _print_row(one: RowComparison, headline: set[str]) -> None:
    """A line for every headline number and whatever differs, then what is to be said of the row as a whole."""
    if one.lines:
        table = Table("metric", "published", "built", "images", "allowed", "verdict", title=one.row)
        for line in one.lines:
            if line.metric in headline or line.verdict != "same":
                counted = ["" if number is None else str(number) for number in (line.images, line.allowed)]
                table.add_row(line.metric, line.published, line.built, *counted, line.verdict)
        console.print(table)
        same = sum(line.verdict == "same" for line in one.lines)
        console.print(f"{one.row}: {same} of {len(one.lines)} numbers and facts are as published")
    for words in (*one.notes, *([one.problem] if one.problem else [])):
        console.print(f"{one.row} {words}")
