"""`rvb diff` compares rows with those published where this branch began, `rvb regress` with those published now."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from pydantic import BaseModel, ValidationError
from rich.table import Table

from benchmark import protocol
from benchmark.commands import baselines
from benchmark.commands.publish import rows_of
from benchmark.commands.terminal import TrackOption, console
from benchmark.pipeline import inputs
from benchmark.records import reproduced
from benchmark.records.per_image import PerImage, counts
from benchmark.records.record import Record, headline_names
from benchmark.records.regression import RULE, Built, RowComparison, compare_row, compare_rows
from benchmark.runtime import code, git
from benchmark.runtime.errors import BenchmarkError, explain, near_miss
from benchmark.runtime.paths import PUBLISHED, WORK
from benchmark.specs import submissions, tracks
from benchmark.specs.rows import Row, load_rows

Model = TypeVar("Model", bound=BaseModel)


def diff(
    base: Annotated[str, typer.Option(help="The branch or commit that this one started from.")] = "main",
    track: Annotated[str, typer.Option(help="One comparison (default: all).")] = "",
    published: Annotated[bool, typer.Option("--published", help="Leave out what was built here in work/.")] = False,
    names_alone: Annotated[
        bool, typer.Option("--changed-rows", help="Name the rows that the branch's code or settings touch; run nothing.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="With --changed-rows: rows with `default: false` too.")] = False,
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


def regress(
    rows: Annotated[list[str] | None, typer.Argument(help="<submission>-<variant> (default: every row).")] = None,
    track: TrackOption = "digits",
    published: Annotated[
        bool, typer.Option("--published", help="Check what is published for itself; nothing needs to be built.")
    ] = False,
    mark: Annotated[bool, typer.Option("--mark", help="Note the commit beside each row that is byte-identical.")] = False,
) -> None:
    """Compare the rows just built with their published Records; exit status 1 if one differs more than is allowed."""
    if mark and published:
        raise BenchmarkError("--mark notes rows that were built, and --published builds none; leave one out")
    if published:
        for name in tracks.names():
            baselines.check(name, baselines.published_rows(name))
        return
    commit = git.clean_commit() if mark else ""
    default = rows_of(track, everything=False)
    names = sorted({*rows_of(track, everything=True), *baselines.published_rows(track)})
    for row in rows or ():
        if row not in names:
            raise BenchmarkError(f"{track} has no row {row!r}{near_miss(row, names)}")
    chosen = rows or names
    baselines.check(track, chosen)
    before, built, damaged = baselines.published(track, chosen), dict[str, Built](), dict[str, RowComparison]()
    for row in chosen:
        made = baselines.attempted(baselines.built_row, track, row)
        if isinstance(made, BenchmarkError):
            damaged[row] = RowComparison(row, problem=f"cannot be compared: {made}")
        elif made:
            built[row] = made
    if not (built or damaged or rows):
        raise BenchmarkError(f"nothing is built here to compare; run `rvb repro --track {track}` first")
    whole = {row: made for row, made in before.items() if row not in damaged}
    comparisons = [*damaged.values(), *compare_rows(whole, built, {*(rows or default)} - damaged.keys())]
    console.print(f"Rule: {RULE}.")
    for comparison in comparisons:
        _print_row(comparison, {*headline_names(tracks.load(track))})
    if mark:
        _mark(track, before, built, commit)
    count = len(comparisons)
    if failed := [comparison.row for comparison in comparisons if comparison.failed]:
        raise BenchmarkError(
            f"{len(failed)} of {count} rows are not what was published: {', '.join(failed)}; "
            "find out why, or publish them anew with --reason"
        )
    console.print(f"{count} row{'s are' if count > 1 else ' is'} what was published")


def _mark(track: str, published: Mapping[str, Built], built: Mapping[str, Built], commit: str) -> None:
    """Note `commit` beside each row that its code built byte-identical to what is published."""
    present, marked = inputs.present_code(track), []
    for row in sorted(published.keys() & built.keys()):
        if compare_row(published[row], built[row], alike=True).failed:
            continue
        if built[row].record.codes.items() <= present[row].items():
            marked.append(row)
        else:
            console.print(f"{row} is not marked: older code built it; run `rvb repro {row} --track {track}`")
    reproduced.update(PUBLISHED / track, dict.fromkeys(marked, "row"), commit)
    console.print(f"{len(marked)} rows noted in {PUBLISHED / track / reproduced.FILE}; commit it")


def _print_row(comparison: RowComparison, headline: set[str]) -> None:
    """Print each headline number, whatever differs, and the notes on the row as a whole."""
    row, lines = comparison.row, comparison.lines
    if lines:
        table = Table("metric", "published", "built", "images changed", "p", "verdict", title=row)
        for line in lines:
            if line.metric in headline or line.verdict != "same":
                changed = "" if line.changed is None else str(line.changed)
                p = "" if line.p is None else f"{line.p:.2g}"
                table.add_row(line.metric, line.published, line.built, changed, p, line.verdict)
        console.print(table)
        same = sum(line.verdict == "same" for line in lines)
        console.print(f"{row}: {same} of {len(lines)} numbers and facts are as published")
    for words in filter(None, (*comparison.notes, comparison.problem)):
        console.print(f"{row} {words}")
