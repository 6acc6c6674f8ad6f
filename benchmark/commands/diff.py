"""`rvb diff`: compare this checkout's rows with those published where its branch began."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from pydantic import BaseModel, ValidationError

from benchmark import protocol
from benchmark.commands import baselines
from benchmark.records.per_image import PerImage, counts
from benchmark.records.record import Record
from benchmark.records.regression import Built, compare_row
from benchmark.runtime import code, git
from benchmark.runtime.errors import BenchmarkError, explain
from benchmark.runtime.paths import PUBLISHED, WORK
from benchmark.specs import submissions, tracks
from benchmark.specs.rows import Row, load_rows

Model = TypeVar("Model", bound=BaseModel)


def diff(
    base: Annotated[str, typer.Option(help="The branch or commit that this one started from.")] = "main",
    track: Annotated[str, typer.Option(help="One comparison (default: all).")] = "",
    published: Annotated[bool, typer.Option("--published", help="Leave out what was built here in work/.")] = False,
    names_alone: Annotated[
        bool,
        typer.Option("--changed-rows", help="Name the rows that the branch's code or settings touch; run nothing."),
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="With --changed-rows: rows with `default: false` too.")
    ] = False,
    exit_zero: Annotated[bool, typer.Option("--exit-zero", help="Status 0 whatever differs.")] = False,
) -> None:
    """Compare rows, built here or published, with the merge base's, in Markdown; exit status 1 if one moved or is gone."""
    if everything and not names_alone:
        raise BenchmarkError("--all says which rows --changed-rows looks at; give both")
    chosen = [tracks.load(track).name] if track else tracks.names()
    commit = git.merge_base(base)
    if names_alone:
        for row in changed_rows(chosen, commit, everything):
            typer.echo(row.name if track else f"{row.name} --track {row.track.name}")
        return
    text, breaks = comparison(commit, chosen, published)
    typer.echo(text)
    if breaks and not exit_zero:
        raise typer.Exit(1)


def changed_rows(names: Sequence[str], commit: str, everything: bool = False) -> list[Row]:
    """Return the rows of these tracks that changes since `commit`, committed or not, can move, in order.

    Rows with `default: false` count only where their own folder changed, or with `everything`. A comment counts too. Raise a
    BenchmarkError for an unknown track, or a submission that does not load.
    """
    touched, digests = git.changed_since(commit), cache(code.digests)
    owners = {file.parts[1] for file in touched if file.parts[0] == submissions.FOLDER.name and len(file.parts) > 2}
    rows = []
    for name in names:
        shared = {tracks.FOLDER / f"{name}.yaml", Path("params.yaml")}
        for row in load_rows(name):
            read = {Path(file) for step in protocol.plan(row) for entry in step.entries for file in digests(entry)}
            if owners & _submissions(row) or (touched & (read | shared) and (row.default or everything)):
                rows.append(row)
    return rows


def _submissions(row: Row) -> set[str]:
    """Return the row's submission and those of the rows from whose weights it starts."""
    return {row.submission.name} | (_submissions(row.source) if row.source else set())


def comparison(commit: str, chosen: list[str], published: bool, only: str = "") -> tuple[str, bool]:
    """Return a Markdown table of the rows of these tracks compared with a commit, and whether one moved or is gone.

    Args:
        published: leave out what was built here in work/.
        only: the rows of this submission alone.
    """
    lines, counts_by_kind, breaks = [], dict.fromkeys(("new", "removed", "changed", "same"), 0), False
    for track in chosen:
        folder = PUBLISHED / track
        before = {path.stem for path in git.files_at(commit, folder) if path.parent == folder and "-" in path.stem}
        built = set() if published else {path.parents[1].name for path in (WORK / track).glob("*/record/record.json")}
        for row in sorted(before | built | {*baselines.published_rows(track)}):
            if only and row.partition("-")[0] != only:
                continue
            try:
                then = _at(commit, track, row) if row in before else None
                now = baselines.built_row(track, row) if row in built else baselines.published_row(track, row)
                kind, cells, moved = _compared(then, now)
            except BenchmarkError as error:  # says what cannot be read, and stops no other row
                kind, cells, moved = "changed", [(str(error), "", "", "")], True
            counts_by_kind[kind] += 1
            breaks = breaks or moved
            lines += [_line(f"{row} on {track}, {kind}", *cell) for cell in cells]
    text = [f"### Rows against the merge base `{commit[:12]}`\n"]
    text.append(", ".join(f"{count} {kind}" for kind, count in counts_by_kind.items()))
    if lines:
        text += ["\n| row | number | merge base | now | images changed |\n|---|---|--:|--:|--:|", *lines]
    return "\n".join(text), breaks


def _at(commit: str, track: str, row: str) -> Built:
    """Return a row as it was published at a commit."""

    def read(kind: type[Model], name: str) -> Model:
        path = PUBLISHED / track / name
        if (content := git.read_at(commit, path)) is None:
            raise BenchmarkError(f"{path} was not published at {commit[:12]}; name a later commit by --base")
        try:
            return kind.model_validate_json(content)
        except ValidationError as error:
            words = explain(error, kind, f"{path} at {commit[:12]}")
            raise BenchmarkError(f"{words}: it does not fit the present code; name a later commit by --base") from None

    return Built(read(Record, f"{row}.json"), read(PerImage, f"images/{row}.json"))


def _compared(before: Built | None, after: Built | None) -> tuple[str, list[tuple[str, str, str, str]], bool]:
    """Return what became of a row, the cells of its differences, and whether it breaks: a new row or other bytes do not."""
    if after is None:
        return "removed", [("", "", "", "")], True
    if before is None:
        return "new", [(name, "–", f"{count} of {n}", "") for name, (count, n) in counts(after.record).items()], False
    compared = compare_row(before, after, alike=True)
    cells = [(line.metric, line.published, line.built, str(line.changed or "")) for line in compared.outside]
    cells += [(compared.problem, "", "", "")] if compared.problem else []
    return ("changed" if cells else "same"), cells, any(not cell[0].startswith("sha256 of ") for cell in cells)


def _line(*cells: str) -> str:
    """Return a line of a Markdown table. Names come from contributors' files, so they are escaped."""
    escaped = [re.sub(r"([\\|`\[])", r"\\\1", text).replace("<", "&lt;") for text in cells]
    return f"| {' | '.join(escaped)} |"
