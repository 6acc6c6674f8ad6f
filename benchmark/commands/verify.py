"""`rvb verify`: recompute Records from stored bytes, or evaluate anybody's adversarial images on a row."""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import redirect_stdout
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchmark.commands import baselines
from benchmark.commands.terminal import JsonOption, console, row_names, track_names
from benchmark.records import contributed
from benchmark.records.contributed import Contribution, Lowered
from benchmark.records.per_image import PerImage
from benchmark.records.record import Record
from benchmark.records.regression import Built
from benchmark.runtime import files, paths
from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.runtime.paths import PUBLISHED
from benchmark.specs import tracks
from benchmark.specs.base import to_json
from benchmark.specs.rows import Row, at_hand, load_row
from benchmark.specs.run_settings import run_settings

if TYPE_CHECKING:  # they import torch
    from benchmark.evaluation.replay.findings import Source, Verification

DIGITS = "digits"  # the track, unless another is named
SHOWN = 10  # contradictions of one kind that are printed; --json has all


def verify(
    rows: Annotated[
        list[str] | None, typer.Argument(help="<submission>-<variant>, built or published", autocompletion=row_names)
    ] = None,
    track: Annotated[
        str, typer.Option(help="Which comparison: digits, or with --all every one.", autocompletion=track_names)
    ] = "",
    every: Annotated[bool, typer.Option("--all", help="Every row that is published.")] = False,
    sample: Annotated[int, typer.Option(min=0, help="Certified images to certify again in each row; 0 for all.")] = 16,
    seed: Annotated[int, typer.Option(min=0, help="Which ones, and their attacks' starts.")] = 0,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Rows at a time; by default one a core.")] = os.cpu_count()
    or 1,
    as_json: JsonOption = False,
    adversarial: Annotated[
        Path | None, typer.Option(help="A safetensors file of adversarial images to evaluate on one row.")
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="With --adversarial: keep what it breaks beside the published Record.")
    ] = False,
) -> None:
    """Recompute verdicts, distances and counts of rows from stored bytes; exit status 1 if anything differs.

    With --adversarial: show which images of a row these break; exit status 1 if they contradict a certificate.
    """
    if adversarial is None and write:
        raise BenchmarkError("--write keeps what --adversarial breaks; give both")
    if every and (rows or adversarial):
        raise BenchmarkError("--all verifies every published row; leave out rows and --adversarial")
    if adversarial is not None:
        if not rows or len(rows) > 1:
            raise BenchmarkError("--adversarial is evaluated on one row; name it, <submission>-<variant>")
        _evaluate(track or DIGITS, rows[0], paths.as_typed(adversarial), write, as_json)
        return
    if not rows and not every:
        raise BenchmarkError("name rows to verify, <submission>-<variant>, or --all")
    chosen = [track] if track else [DIGITS] if rows else baselines.published_tracks()
    verifications = []
    for name in chosen:
        for verification in verified(name, rows or baselines.published_rows(name), sample, seed, jobs):
            verifications.append(verification)
            if not as_json:
                _print(verification)
    if as_json:
        typer.echo(json.dumps([verification.model_dump(mode="json") for verification in verifications], indent=1))
    tiers = {(verification.track, verification.row): verification.tier for verification in verifications}
    if failed := list(dict.fromkeys(verification.row for verification in verifications if not verification.holds)):
        raise BenchmarkError(f"{len(failed)} of {len(tiers)} rows do not hold: {', '.join(failed)}")
    if as_json:
        return
    replayed = [*tiers.values()].count("replayed")
    words = f"{replayed} replayed, {len(tiers) - replayed} as far as they could be checked"
    words = f"{len(tiers)} rows hold: {words}" if len(tiers) != 1 else f"1 row holds: {words}"
    if not tiers:
        words = f"no row of {' or '.join(chosen) or 'any track'} is published; nothing was verified"
    console.print(words, markup=False)


def verified(track: str, rows: Iterable[str], sample: int, seed: int, jobs: int) -> Iterator[Verification]:
    """Verify each Record of these rows, `jobs` at a time, those with a damaged file first, which do not hold.

    Raise a BenchmarkError for a row neither built nor published.
    """
    from benchmark.evaluation.replay.findings import Verification

    tracks.load(track)
    chosen: list[tuple[str, Built, Source]] = []
    for name, made, of in [(row, *target) for row in rows for target in targets(track, row)]:
        if isinstance(made, Built):
            chosen.append((name, made, of))
        else:
            damaged = Verification(track=track, row=name, of=of, trust="claimed")
            damaged.contradict(str(made))
            yield damaged
    if not chosen:
        return

    from benchmark.evaluation.replay.verify import verify as verify_record
    from benchmark.runtime.torch_setup import set_up

    _prepare_data(track)
    device = set_up(run_settings().evaluate.device)
    calls = []
    for row, built, of in chosen:
        weights = built.record.sha256["weights"] if of == "published" else ""
        calls.append((built, of, _present(track, row, weights), device, sample, seed))
    yield from _in_forks(verify_record, calls, 1 if device.type == "cuda" else jobs)


def _prepare_data(track: str) -> None:
    """Prepare the track's data where they are missing. Print why not: without images rows are verified in part."""
    from benchmark.steps import data

    if not (paths.WORK / track / "data/data.json").exists():
        try:
            with redirect_stdout(sys.stderr):
                data.execute(track)
        except BenchmarkError as error:
            print(f"no images: {error}", file=sys.stderr)


def _in_forks(
    verify_record: Callable[..., Verification], calls: Iterable[tuple[Any, ...]], jobs: int
) -> Iterator[Verification]:
    """Yield the verification of each Record, in order, made in a process of its own, `jobs` at a time.

    A process that has started a GPU cannot fork another that uses one, as each sandboxed row does. And so the sandboxed
    processes of a row see no labels that were read for another row. The first of each call's arguments is the row.
    """
    waiting, running = deque(calls), deque[tuple[ProcessPoolExecutor, Built, Future["Verification"]]]()
    while waiting or running:
        while waiting and len(running) < jobs:
            arguments = waiting.popleft()
            fork = ProcessPoolExecutor(1, mp_context=get_context("fork"))
            running.append((fork, arguments[0], fork.submit(verify_record, *arguments)))
        fork, built, verification = running.popleft()
        try:
            yield verification.result()
        except BrokenProcessPool:
            words = "the process that verifies it was killed, as where memory is short; try --jobs 1"
            raise BenchmarkError(f"{built.record.row}: {words}") from None
        finally:
            fork.shutdown()  # and wait: CPython 3.11 may write to its closed pipe at exit if nobody does


def targets(track: str, row: str) -> list[tuple[Built | BenchmarkError, Source]]:
    """Return the built and the published Record of a row, each with where it is kept, or one where they are the same.

    Of a damaged one return the error. Raise a BenchmarkError, with the near miss, where there is neither.
    """
    built = baselines.attempted(baselines.built_row, track, row)
    published = baselines.attempted(baselines.published_row, track, row)
    if isinstance(built, Built) and isinstance(published, Built) and _numbers(built) == _numbers(published):
        return [(published, "built and published")]
    if not built and not published:
        unknown = isinstance(_present(track, row), BenchmarkError)
        near = near_miss(row, baselines.published_rows(track)) if unknown else f"; run `rvb repro {row}`"
        raise BenchmarkError(f"{row} is neither built here nor published on {track}{near}")
    both: list[tuple[Built | BenchmarkError | None, Source]] = [(built, "built"), (published, "published")]
    return [(made, of) for made, of in both if made]


def _numbers(row: Built) -> tuple[Record, PerImage]:
    """Return what a published row and the same row built here share: no digests of code, no reason, no distances."""
    kept = {name: digest for name, digest in row.record.sha256.items() if not name.startswith("code ")}
    record = row.record.model_copy(update={"sha256": kept, "reason": ""})
    return record, row.images.model_copy(update={"broken": ()})


def _present(track: str, row: str, sha256: str = "") -> Row | BenchmarkError:
    try:
        return at_hand(load_row(track, row), sha256)
    except BenchmarkError as error:
        return error


def _print(verification: Verification) -> None:
    row, contradictions = verification.row, verification.contradictions
    verdict = "holds, replayed" if verification.tier == "replayed" else "holds as far as it was checked"
    verdict = verdict if verification.holds else f"does NOT hold: {len(contradictions)} contradictions"
    lines = [f"{row} on {verification.track}, {verification.of}: {verdict}"]
    lines += [f"  checked: {check.count} {check.what}" for check in verification.checked]
    lines += [f"  not checked: {words}" for words in verification.unchecked]
    for what in dict.fromkeys(contradiction.what for contradiction in contradictions):
        same = [contradiction.line for contradiction in contradictions if contradiction.what == what]
        lines += same[:SHOWN]
        if len(same) > SHOWN:
            lines.append(f"{row}: {what}: {len(same) - SHOWN} images more (--json names all)")
    if verification.checked:  # nothing is, of a damaged file
        lines.append(f"  trust: these checks amount to `{verification.tier}`; the Record says `{verification.trust}`")
    for line in lines:
        console.print(line, markup=False)


def _evaluate(track: str, name: str, path: Path, write: bool, as_json: bool) -> None:
    """Print what the images of `path` break; with `write` keep it beside the published Record.

    Raise a BenchmarkError where the file is refused, the network missing, a certificate is contradicted, or no image is new.
    """
    from benchmark.evaluation.replay.contributed import evaluate_file, evaluator_of
    from benchmark.evaluation.replay.findings import some
    from benchmark.runtime.torch_setup import set_up

    if not path.is_file():
        raise BenchmarkError(f"{path} is no file; give a safetensors file of adversarial images")
    row, published = load_row(track, name), baselines.published_row(track, name)
    made = published or baselines.built_numbers(track, name)
    if made is None:
        raise BenchmarkError(f"{name} is neither built here nor published on {track}; run `rvb repro {name}`")
    if write and published is None:
        raise BenchmarkError(f"{name} is not published on {track}; there is no number to lower: leave out --write")
    _prepare_data(track)
    with evaluator_of(made.record, row, set_up(run_settings().evaluate.device)) as evaluator:
        broken, new = evaluate_file(path, evaluator, made.record, made.images)
    earlier = contributed.read(PUBLISHED / track / contributed.FOLDER, made.record)
    effect = contributed.effect(made.record, made.images.scores, earlier, new)
    alarms = new.contradicted
    if as_json:
        robust = [threat.model_dump(mode="json") for threat in effect]
        content = {"broken": broken, "contribution": new.model_dump(mode="json"), "robust": robust}
        typer.echo(files.to_json(content).decode(), nl=False)
    else:
        lines = [f"{count} images that are right when clean are wrong in {ball}" for ball, count in broken.items()]
        for ball in effect:
            words = f"newly broken: images {some(ball.lost)}" if ball.lost else "nothing new"
            lines.append(f"robust {ball.threat}: {ball.before} -> {ball.after} images; {words}")
        for line in lines:
            console.print(f"{name}: {line}", markup=False)
        for image in alarms:
            words = f"certified at l2 {image.certified:.6g}, broken at {image.l2:.6g} (margin {image.margin:.6g})"
            console.print(f"ALARM: {name}: image {image.image}: {words}", markup=False)
    if write:
        _keep(track, made.record, new, earlier, effect)
    if alarms:
        first = alarms[0]
        raise BenchmarkError(
            f"{name}: {len(alarms)} certified radii are contradicted; image {first.image} is certified at l2 "
            f"{first.certified:.6g} and broken at {first.l2:.6g} (margin {first.margin:.6g}): the certificate is wrong"
        )


def _keep(
    track: str, record: Record, new: Contribution, earlier: tuple[Contribution, ...], effect: tuple[Lowered, ...]
) -> None:
    """Write the images that `new` breaks beside the published Record. Raise a BenchmarkError where they break nothing new."""
    if new.credit == contributed.UNNAMED:
        raise BenchmarkError("the file's metadata has no `credit`, who is to be named beside the lower number; add it")
    seen = {(image.image, image.threat) for file in earlier for image in file.contradicted}
    alarm = any((image.image, image.threat) not in seen for image in new.contradicted)
    if not alarm and not any(ball.lost for ball in effect):
        raise BenchmarkError(f"{record.row}: these images break nothing that still stands; nothing written")
    path = PUBLISHED / track / contributed.FOLDER / f"{record.row}.json"
    kept = contributed.load(path) if path.exists() else None
    if kept and (why := contributed.stale(kept, record)):
        raise BenchmarkError(f"{path} holds {why}; delete it first, or bring those anew; nothing written")
    every = (*(kept.contributions if kept else ()), new)
    made = contributed.BrokenRow(track=track, track_version=record.track_version, row=record.row, contributions=every)
    files.write(path, to_json(made))
    typer.echo(f"wrote {path}; run `rvb repro` and `python -m leaderboard.readme`, and commit it", err=True)
