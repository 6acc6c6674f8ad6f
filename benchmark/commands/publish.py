"""`rvb publish`: copy Records and studies to where git keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from benchmark.commands import baselines
from benchmark.commands.terminal import ReasonOption, TrackOption, console
from benchmark.pipeline import costs, inputs
from benchmark.records import reproduced
from benchmark.records.record import on_other_images
from benchmark.records.regression import Built, compare_row
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import PUBLISHED, WORK
from benchmark.specs import tracks
from benchmark.specs.base import to_json
from benchmark.specs.rows import load_row, load_rows

LARGEST = 16 * 2**20  # bytes of weights that git keeps of a row
HEADING = "## Published Records\n"


def publish(
    row: Annotated[str, typer.Argument(help="<submission>-<variant>; with --study: whose, as `rvb study` has it")] = "",
    track: TrackOption = "digits",
    study: Annotated[str, typer.Option(help="Publish this study; but for `seeds` its track is its own.")] = "",
    every: Annotated[bool, typer.Option("--all", help="Publish every row of the track, or none.")] = False,
    reason: ReasonOption = "",
) -> None:
    """Copy a row's Record, or a study, to leaderboard/results/, where git and reviewers see it."""
    if every and (row or study):
        raise BenchmarkError("--all publishes every row of the track; leave out the row and --study")
    if every:
        publish_rows(track, rows_of(track, everything=True), reason)
    elif not row:
        words = "the submission whose study it is" if study else "a row, <submission>-<variant>, or --all"
        raise BenchmarkError(f"name what to publish: {words}")
    elif study:
        _publish_study(row, study, track)
    else:
        publish_rows(track, [load_row(track, row).name], reason)


def rows_of(track: str, everything: bool) -> list[str]:
    """Return the rows that `rvb repro` builds; with `everything` also those with `default: false`.

    Raise a BenchmarkError for an unknown track, or one without rows.
    """
    tracks.load(track)
    rows = load_rows(track)
    if not rows:
        raise BenchmarkError(f"no submission enters track {track!r} yet; there is nothing to publish or compare")
    return [row.name for row in rows if everything or row.default]


def publish_rows(track: str, rows: list[str], reason: str) -> None:
    """Publish all of these rows or none. A published number moves only for a given reason."""
    built = baselines.built(track, rows)
    if missing := [row for row in rows if row not in built]:
        default = {*missing} <= {*rows_of(track, everything=False)}
        again = f"rvb repro --track {track}" + ("" if default else " --all")
        raise BenchmarkError(f"not built yet: {', '.join(missing)}; run `{again}`; nothing published")
    if faults := baselines.changed_rules(track):
        raise BenchmarkError(faults[0])
    present, version = inputs.present_code(track), tracks.load(track).version
    for row, made in built.items():
        record, settings = made.record, load_row(track, row).settings
        as_built = (record.settings, record.track_version) == (settings, version)
        if not as_built or not record.codes.items() <= present[row].items():
            words = "its code, its settings or the track's version changed since it was built"
            raise BenchmarkError(f"{row}: {words}; run `rvb repro {row} --track {track}`; nothing published")
    others = (baselines.attempted(baselines.published_row, track, row) for row in baselines.published_rows(track))
    standing = {other.record.row: other for other in others if isinstance(other, Built)} | built
    if words := on_other_images(row.record for row in standing.values()):
        raise BenchmarkError(f"{words}; nothing published")
    bare = [row for row in built if baselines.lacks_images(track, row)]
    kept = baselines.published(track, [row for row in rows if row not in bare])
    moved = {row: words for row, made in built.items() if (words := _moved(kept.get(row), made))}
    moved |= dict.fromkeys(bare, "it is published without its numbers by image")
    if moved and not reason:
        first = next(iter(moved))
        more = f" and {len(moved) - 1} rows more" if len(moved) > 1 else ""
        raise BenchmarkError(f"{first} would change ({moved[first]}){more}; say why: --reason '...'; nothing published")
    for row, made in built.items():
        before = kept.get(row)
        why = reason if row in moved else before.record.reason if before else ""
        built[row] = replace(made, record=made.record.model_copy(update={"reason": why}))
    times = costs.publish(track, built)
    reproduced.update(PUBLISHED / track, {}, forget=moved)
    for path in (*_write(track, built), times):
        console.print(f"wrote {path}; commit it")
    if moved:
        _note_reason(track, moved, reason)
        console.print(f"wrote {baselines.CHANGELOG}: why {len(moved)} rows changed; commit it")


def _moved(before: Built | None, built: Built) -> str:
    """Return the first number, fact or digest that is not as published, in words; "" where there is none."""
    if before is None:
        return ""
    comparison = compare_row(before, built, alike=True)
    if comparison.problem:
        return f"it {comparison.problem.partition(';')[0]}"
    return next((f"{line.metric}: {line.published} to {line.built}" for line in comparison.outside), "")


def _write(track: str, rows: Mapping[str, Built]) -> list[Path]:
    """Write rows and their weights. Return the files of the rows."""
    folder, machines, written = PUBLISHED / track, baselines.machines(track), []
    for row, made in rows.items():
        images = made.images.model_copy(update={"broken": _distances(track, row, made.record.sha256["evidence"])})
        _write_weights(track, row, made.record.sha256["weights"])
        for path, content in ((folder / f"{row}.json", made.record), (folder / "images" / f"{row}.json", images)):
            files.write(path, to_json(content))
            written.append(path)
        machines[row] = dict(made.machine)
    files.write_json(folder / "machine.json", machines)
    files.write_json(folder / "track.json", tracks.load(track).rules)
    return written


def _distances(track: str, row: str, sha256: str) -> tuple[float | None, ...]:
    """Return the l2 distances at which attacks broke a row's images, for `PerImage.broken`; empty without its evidence."""
    path = WORK / track / row / "record/evidence.parquet"
    if not path.exists():
        return ()
    if files.sha256_file(path) != sha256:
        raise BenchmarkError(f"{path} is not the evidence of the Record; run `rvb repro {row} --track {track}`")
    import pyarrow.parquet as pq

    from benchmark.records.evidence import published_distances

    return published_distances(pq.read_table(path, use_threads=False))


def _write_weights(track: str, row: str, sha256: str) -> None:
    """Copy a row's weights beside its Record, up to LARGEST bytes. Remove those of another build."""
    made, kept = WORK / track / row / "train/model.safetensors", PUBLISHED / track / "weights" / f"{row}.safetensors"
    if made.exists() and files.sha256_file(made) != sha256:
        raise BenchmarkError(f"{made} are not the weights of the Record; run `rvb repro {row} --track {track}`")
    if kept.exists() and files.sha256_file(kept) != sha256:
        kept.unlink()
    if not made.exists() or kept.exists():
        return
    if (size := made.stat().st_size) > LARGEST:
        console.print(
            f"{row}: its weights have {size / 2**20:.0f} MiB, more than the {LARGEST >> 20} that git keeps of a row, and are "
            f"not published. Release {made} elsewhere: benchmark.load_model takes it, saved as {kept}, by the sha256 in the "
            "Record."
        )
    else:
        files.write(kept, made.read_bytes())


def _note_reason(track: str, rows: Iterable[str], reason: str) -> None:
    """Write into CHANGELOG why published rows moved, newest first."""
    text = baselines.CHANGELOG.read_text() if baselines.CHANGELOG.exists() else "# Changelog\n"
    head, _, rest = text.partition(HEADING)
    head = head if HEADING in text else f"{text.rstrip()}\n\n"
    rest = rest.lstrip()
    gap = "\n" if rest and not rest.startswith("- ") else ""
    files.write(baselines.CHANGELOG, f"{head}{HEADING}\n- {track}, {', '.join(rows)}: {reason}\n{gap}{rest}")


def _publish_study(owner: str, name: str, track: str) -> None:
    from benchmark.studies import grids
    from benchmark.studies.results import collect_study

    grid = grids.load(*grids.split_id(f"{owner}-{name}"), track)
    path = PUBLISHED / grid.track.name / "studies" / f"{grid.id}.json"
    files.write(path, to_json(collect_study(grid)))
    reproduced.update(PUBLISHED / grid.track.name, {}, forget=[grid.id])
    console.print(f"wrote {path}; commit it")
