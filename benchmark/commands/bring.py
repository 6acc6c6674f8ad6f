"""What `rvb verify --adversarial` does: anybody's adversarial images against one row, and the note that the board reads."""

from __future__ import annotations

from pathlib import Path

import typer

from benchmark.commands import baselines
from benchmark.commands.terminal import console
from benchmark.loading.rows import load_row
from benchmark.loading.run_settings import run_settings
from benchmark.results import brought
from benchmark.results.brought import Brought, Lowered
from benchmark.results.record import Record
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import PUBLISHED
from benchmark.specs.base import to_json


def judge(track: str, name: str, path: Path, write: bool, as_json: bool) -> None:
    """Print what the images of `path` break; with `write` keep it beside the published Record. A BenchmarkError where the
    file is refused, the network is not at hand, a certificate is contradicted, or nothing new would be written.
    """
    from benchmark.replay.brought import judge_file, judge_of
    from benchmark.replay.findings import some
    from benchmark.runtime.torch_setup import set_up

    row, published = load_row(track, name), baselines.published_row(track, name)
    made = published or baselines.built_numbers(track, name)
    if made is None or made.images is None:
        raise BenchmarkError(f"{name} is neither built here nor published on {track}; run `rvb repro {name}`")
    if write and published is None:
        raise BenchmarkError(f"{name} is not published on {track}; there is no number to lower: leave out --write")
    with judge_of(made.record, row, set_up(run_settings().evaluate.device)) as judge:
        judged = judge_file(path, judge, made.record, made.images)
    known = brought.read(PUBLISHED / track / brought.FOLDER, made.record)
    effect = brought.effect(made.record, made.images.scores, known, judged.brought)
    alarms = judged.brought.contradicted
    if as_json:
        robust = [threat.model_dump(mode="json") for threat in effect]
        typer.echo(files.to_json({**judged.model_dump(mode="json"), "robust": robust}).decode(), nl=False)
    else:
        lines = [
            f"{count} images that are right when clean are wrong in {ball}" for ball, count in judged.broken.items()
        ]
        for ball in effect:
            words = f"newly broken: images {some(ball.lost)}" if ball.lost else "nothing new"
            lines.append(f"robust {ball.threat}: {ball.before} -> {ball.after} images; {words}")
        for line in lines:
            console.print(f"{name}: {line}", markup=False)
        for image in alarms:
            words = f"certified at l2 {image.certified:.6g}, broken at {image.l2:.6g} (margin {image.margin:.6g})"
            console.print(f"ALARM: {name}: image {image.image}: {words}", markup=False)
    if write:
        _write(track, made.record, judged.brought, known, effect)
    if alarms:
        first = alarms[0]
        raise BenchmarkError(
            f"{name}: {len(alarms)} certified radii are contradicted; image {first.image} is certified at l2 "
            f"{first.certified:.6g} and broken at {first.l2:.6g} (margin {first.margin:.6g}): the certificate is wrong"
        )


def _write(track: str, record: Record, new: Brought, known: tuple[Brought, ...], effect: tuple[Lowered, ...]) -> None:
    if new.credit == brought.UNNAMED:
        raise BenchmarkError("the file's metadata has no `credit`, who is to be named beside the lower number; add it")
    seen = {(image.image, image.threat) for file in known for image in file.contradicted}
    alarm = any((image.image, image.threat) not in seen for image in new.contradicted)
    if not alarm and not any(ball.lost for ball in effect):
        raise BenchmarkError(f"{record.row}: these images break nothing that still stands; nothing written")
    path = PUBLISHED / track / brought.FOLDER / f"{record.row}.json"
    earlier = brought.load(path) if path.exists() else None
    if earlier and (why := brought.stale(earlier, record)):
        raise BenchmarkError(f"{path} holds {why}; delete it first, or bring those anew; nothing written")
    every = (*(earlier.brought if earlier else ()), new)
    made = brought.BrokenRow(track=track, track_version=record.track_version, row=record.row, brought=every)
    files.write(path, to_json(made))
    typer.echo(f"wrote {path}; run `rvb repro` and `python -m leaderboard.readme`, and commit it", err=True)
