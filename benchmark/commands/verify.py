"""`rvb verify`: Records computed again from stored bytes, or anybody's adversarial images judged against a row."""

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

from benchmark.commands import baselines, bring
from benchmark.commands.completion import row_names, track_names
from benchmark.commands.terminal import console
from benchmark.runtime import paths
from benchmark.runtime.errors import BenchmarkError, near_miss

if TYPE_CHECKING:
    from benchmark.loading.rows import Row
    from benchmark.replay.verify import Target
    from benchmark.results.record import Record
    from benchmark.results.verification import Contradiction, Verification

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
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, help="Rows at a time; by default one a core.")
    ] = os.cpu_count() or 1,
    as_json: Annotated[bool, typer.Option("--json", help="All that was found, as JSON.")] = False,
    adversarial: Annotated[
        Path | None, typer.Option(help="A safetensors file of adversarial images to judge against one row.")
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="With --adversarial: keep what it breaks beside the published Record.")
    ] = False,
) -> None:
    """Compute verdicts, distances and counts of rows again from what is stored; exit status 1 if anything is otherwise.

    With --adversarial: which images of a row these adversarial images break; exit status 1 if a certificate is contradicted.
    """
    if adversarial is None and write:
        raise BenchmarkError("--write keeps what --adversarial breaks; give both")
    if every and (rows or adversarial):
        raise BenchmarkError("--all verifies every published row; leave out rows and --adversarial")
    if adversarial is not None:
        if not rows or len(rows) > 1:
            raise BenchmarkError("--adversarial is judged against one row; name it, <submission>-<variant>")
        bring.judge(track or DIGITS, rows[0], paths.as_typed(adversarial), write, as_json)
        return
    if not rows and not every:
        raise BenchmarkError("name rows to verify, <submission>-<variant>, or --all")
    tracks = [track] if track else [DIGITS] if rows else baselines.published_tracks()
    verifications = [
        each
        for name in tracks
        for each in verified(name, rows or baselines.published_rows(name), sample, seed, jobs, as_json)
    ]
    if as_json:
        typer.echo(json.dumps([each.model_dump(mode="json") for each in verifications], indent=1))
    known = {(each.track, each.row): each.tier for each in verifications}
    if failed := list(dict.fromkeys(each.row for each in verifications if not each.holds)):
        raise BenchmarkError(f"{len(failed)} of {len(known)} rows do not hold: {', '.join(failed)}")
    if as_json:
        return
    if not verifications:
        console.print(
            f"no row of {' or '.join(tracks) or 'any track'} is published; nothing was verified", markup=False
        )
    else:
        replayed = [*known.values()].count("replayed")
        console.print(
            f"{len(known)} rows hold: {replayed} replayed, {len(known) - replayed} as far as they could be checked"
        )


def verified(
    track: str, rows: Iterable[str], sample: int, seed: int, jobs: int = 1, quiet: bool = False
) -> Iterable[Verification]:
    """Each Record of these rows, built or published, `jobs` at a time, printed unless `quiet`.

    Raises:
        BenchmarkError: an unknown track, or a row that is neither built here nor published.
    """
    from benchmark.loading import tracks

    tracks.load(track)
    wanted = [(row, targets(track, row)) for row in rows]
    if not wanted:
        return

    from benchmark.loading.run_settings import run_settings
    from benchmark.replay.verify import verify as verify_record
    from benchmark.runtime.torch_setup import set_up
    from benchmark.steps.data import step as data

    if not (data.folder(tracks.load(track)) / "data.json").exists():
        try:
            with redirect_stdout(sys.stderr):
                data.execute(track)
        except BenchmarkError as error:  # verified as far as it goes without
            print(f"no images: {error}", file=sys.stderr)

    device = set_up(run_settings().evaluate.device)
    calls = [
        (target, _today(track, row, "" if target.own else target.record.sha256["weights"]), device, sample, seed)
        for row, found in wanted
        for target in found
    ]
    for verification in _in_forks(verify_record, calls, 1 if device.type == "cuda" else jobs):
        if not quiet:
            _print(verification)
        yield verification


def _in_forks(
    verify_record: Callable[..., Verification], calls: Iterable[tuple[Any, ...]], jobs: int
) -> Iterator[Verification]:
    """Yield the verification of each target, in order, made in a process of its own, `jobs` at a time.

    A process that has started a GPU cannot fork another that uses one, as each sandboxed row does. And the sandboxed
    processes of a row see nothing of the labels that were read for the row before.

    Args:
        calls: arguments of `verify_record`, the target first.

    Raises:
        BenchmarkError: a process was killed.
    """
    waiting = deque(calls)
    running: deque[tuple[Target, Future[Verification]]] = deque()
    while waiting or running:
        while waiting and len(running) < jobs:
            arguments = waiting.popleft()
            fork = ProcessPoolExecutor(1, mp_context=get_context("fork"))
            running.append((arguments[0], fork.submit(verify_record, *arguments)))
            fork.shutdown(wait=False)  # it ends after this call
        target, future = running.popleft()
        try:
            verification = future.result()
        except BrokenProcessPool:
            words = "the process that verifies it was killed, as where memory is short; try --jobs 1"
            raise BenchmarkError(f"{target.record.row}: {words}") from None
        yield verification


def targets(track: str, row: str) -> list[Target]:
    """The Records of a row: the one built here and the published one, or both as one where they say the same.

    Raises:
        BenchmarkError: there is neither (the near miss is suggested), or one is damaged.
    """
    from benchmark.replay.verify import Target

    built, published = baselines.built_row(track, row), baselines.published_row(track, row)
    if built and published and (_said(built.record), built.images) == (_said(published.record), published.images):
        return [Target(published.record, published.images, published.machine, "built and published")]
    found = [Target(built.record, built.images, built.machine, "built")] if built else []
    found += [Target(published.record, published.images, published.machine, "published")] if published else []
    if not found:
        unknown = isinstance(_today(track, row), BenchmarkError)
        near = near_miss(row, baselines.published_rows(track)) if unknown else f"; run `rvb repro {row}`"
        raise BenchmarkError(f"{row} is neither built here nor published on {track}{near}")
    return found


def _said(record: Record) -> Record:
    """What a Record says of numbers and bytes: not by which code, nor why it was published."""
    kept = {name: digest for name, digest in record.sha256.items() if not name.startswith("code ")}
    return record.model_copy(update={"sha256": kept, "reason": ""})


def _today(track: str, row: str, sha256: str = "") -> Row | BenchmarkError:
    from benchmark.loading.rows import load_row
    from benchmark.sandbox.load_model import at_hand

    try:
        return at_hand(load_row(track, row), sha256)
    except BenchmarkError as error:
        return error


def _print(found: Verification) -> None:
    verdict = "holds, replayed" if found.tier == "replayed" else "holds as far as it was checked"
    verdict = verdict if found.holds else f"does NOT hold: {len(found.contradictions)} contradictions"
    console.print(f"{found.row} on {found.track}, {found.of}: {verdict}", markup=False)
    for check in found.checked:
        console.print(f"  checked: {check.count} {check.what}", markup=False)
    for words in found.unchecked:
        console.print(f"  not checked: {words}", markup=False)
    kinds: dict[str, list[Contradiction]] = {}
    for one in found.contradictions:
        kinds.setdefault(one.what, []).append(one)
    for what, same in kinds.items():
        for one in same[:SHOWN]:
            console.print(one.line, markup=False)
        if len(same) > SHOWN:
            console.print(f"{found.row}: {what}: {len(same) - SHOWN} images more (--json names all)", markup=False)
    console.print(f"  trust: these checks amount to `{found.tier}`; the Record says `{found.trust}`", markup=False)
