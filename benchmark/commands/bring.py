"""What `rvb verify --adversarial` does: anybody's adversarial images against one row, and the note that the board reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from benchmark.commands import baselines
from benchmark.commands.terminal import console
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import PUBLISHED

if TYPE_CHECKING:
    from benchmark.replay.brought import Judged
    from benchmark.results.brought import Brought, Lowered
    from benchmark.results.record import Record


def judge(track: str, name: str, path: Path, write: bool, as_json: bool) -> None:
    """Prints what the images of `path` break; with `write` keeps it beside the published Record.

    Raises:
        BenchmarkError: the file is refused, the row's network is not at hand, a certificate is contradicted, or nothing
            new would be written.
    """
    from benchmark.loading.rows import load_row
    from benchmark.loading.run_settings import run_settings
    from benchmark.replay.brought import judge_file, judge_of
    from benchmark.results import brought
    from benchmark.runtime.torch_setup import set_up

    row, published = load_row(track, name), baselines.published_row(track, name)
    one = published or baselines.built_row(track, name)
    if one is None or one.images is None:
        raise BenchmarkError(f"{name} is neither built here nor published on {track}; run `rvb repro {name}`")
    if write and published is None:
        raise BenchmarkError(f"{name} is not published on {track}; there is no number to lower: leave out --write")
    device = set_up(run_settings().evaluate.device)
    with judge_of(one.record, row, device) as judge:
        judged = judge_file(path, judge, one.record, one.images)
    known = brought.read(PUBLISHED / track / brought.FOLDER, one.record)
    effect = brought.effect(one.record, one.images.scores, known, judged.brought)
    if as_json:
        robust = [each.model_dump(mode="json") for each in effect]
        typer.echo(files.to_json({**judged.model_dump(mode="json"), "robust": robust}).decode(), nl=False)
    else:
        _print(name, judged, effect)
    if write:
        _write(track, one.record, judged.brought, known, effect)
    if alarms := judged.brought.contradicted:
        first = alarms[0]
        raise BenchmarkError(
            f"{name}: {len(alarms)} certified radii are contradicted; image {first.image} is certified at l2 "
            f"{first.certified:.6g} and broken at {first.l2:.6g} (margin {first.margin:.6g}): the certificate is wrong"
        )


def _print(row: str, judged: Judged, effect: tuple[Lowered, ...]) -> None:
    from benchmark.replay.findings import some

    for threat, count in judged.broken.items():
        console.print(f"{row}: {count} images that are right when clean are wrong in {threat}", markup=False)
    for one in effect:
        words = f"newly broken: images {some(one.lost)}" if one.lost else "nothing new"
        console.print(f"{row}: robust {one.threat}: {one.before} -> {one.after} images; {words}", markup=False)
    for image in judged.brought.contradicted:
        words = f"certified at l2 {image.certified:.6g}, broken at {image.l2:.6g} (margin {image.margin:.6g})"
        console.print(f"ALARM: {row}: image {image.image}: {words}", markup=False)


def _write(track: str, record: Record, new: Brought, known: tuple[Brought, ...], effect: tuple[Lowered, ...]) -> None:
    from benchmark.results import brought
    from benchmark.specs.base import to_json

    if new.credit == brought.UNNAMED:
        raise BenchmarkError("the file's metadata has no `credit`, who is to be named beside the lower number; add it")
    seen = {(one.image, one.threat) for each in known for one in each.contradicted}
    alarm = any((one.image, one.threat) not in seen for one in new.contradicted)
    if not alarm and not any(one.lost for one in effect):
        raise BenchmarkError(f"{record.row}: these images break nothing that still stands; nothing written")
    path = PUBLISHED / track / brought.FOLDER / f"{record.row}.json"
    earlier = brought.load(path) if path.exists() else None
    if earlier and (why := brought.stale(earlier, record)):
        raise BenchmarkError(f"{path} holds {why}; delete it first, or bring those anew; nothing written")
    every = (*(earlier.brought if earlier else ()), new)
    made = brought.BrokenRow(track=track, track_version=record.track_version, row=record.row, brought=every)
    files.write(path, to_json(made))
    typer.echo(f"wrote {path}; run `rvb repro` and `python -m leaderboard.readme`, and commit it", err=True)
