"""`rvb diff`: this checkout's rows against those published where its branch began. torch is not imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from pydantic import BaseModel, ValidationError
from rich.table import Table

from benchmark.commands import baselines
from benchmark.commands.terminal import console
from benchmark.loading import tracks
from benchmark.runtime import git
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import PUBLISHED, WORK

if TYPE_CHECKING:
    from benchmark.results.difference import Difference, NumberDifference, RowDifference
    from benchmark.results.per_image import PerImage
    from benchmark.results.record import Record

Model = TypeVar("Model", bound=BaseModel)
SHOWN = 10  # flipped images named in a table; --json names all


def diff(
    base: Annotated[str, typer.Option(help="The branch or commit that this one started from.")] = "main",
    track: Annotated[str, typer.Option(help="One comparison (default: all).")] = "",
    published: Annotated[bool, typer.Option("--published", help="Leave out what was built here in work/.")] = False,
    changed_rows: Annotated[
        bool,
        typer.Option("--changed-rows", help="Name the rows that the branch's code or settings touch; run nothing."),
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="With --changed-rows: rows with `default: false` too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="All that differs, as JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="A table for a pull request.")] = False,
    exit_zero: Annotated[bool, typer.Option("--exit-zero", help="Status 0 whatever differs.")] = False,
) -> None:
    """Compare rows, built here or published, with the merge base's; exit status 1 if a row of it moved or is gone."""
    from benchmark.specs.base import to_json

    if as_json and markdown:
        raise BenchmarkError("--json and --markdown are two forms of the same; leave one out")
    if everything and not changed_rows:
        raise BenchmarkError("--all says which rows --changed-rows looks at; give both")
    chosen = [tracks.load(track).name] if track else tracks.names()
    commit = git.merge_base(base)
    if changed_rows:
        _print_changed(chosen, commit, everything, as_json, bool(track))
        return
    found = difference(commit, chosen, published)
    if as_json:
        typer.echo(to_json(found), nl=False)
    elif markdown:
        typer.echo(as_markdown(found))
    else:
        _print(found)
    if any(row.breaks for row in found.rows) and not exit_zero:
        raise typer.Exit(1)


def difference(commit: str, chosen: list[str], published: bool) -> Difference:
    """Every row of these tracks that either side has; `published` leaves out what stands in work/.

    Raises:
        BenchmarkError: a Record or its images that are damaged, here or at the commit.
    """
    from benchmark.results.difference import Difference, compare

    rows: list[RowDifference] = []
    for track in chosen:
        folder = PUBLISHED / track
        before = {path.stem for path in git.files_at(commit, folder) if path.parent == folder and "-" in path.stem}
        built = set() if published else {path.parents[1].name for path in (WORK / track).glob("*/record/record.json")}
        here = set(baselines.published_rows(track))
        for row in sorted(before | here | built):
            was = _at(commit, folder, row) if row in before else (None, None)
            one = baselines.built_row(track, row) if row in built else baselines.published_row(track, row)
            made = compare(was[0], one.record if one else None, was[1], one.images if one else None)
            rows.append(made.model_copy(update={"of": "built" if row in built else "published" if one else ""}))
    return Difference(base=commit, rows=tuple(rows))


def _at(commit: str, folder: Path, row: str) -> tuple[Record, PerImage | None]:
    """What was published of a row at a commit: its Record, and its numbers by image where they were."""
    from benchmark.results.per_image import PerImage
    from benchmark.results.record import Record

    def read(kind: type[Model], path: Path) -> Model | None:
        content = git.read_at(commit, path)
        try:
            return None if content is None else kind.model_validate_json(content)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "the file"
            words = f"{path} at {commit[:12]} does not fit today's code ({place}: {first['msg']})"
            raise BenchmarkError(f"{words}; name a later commit by --base") from None

    record = read(Record, folder / f"{row}.json")
    assert record is not None  # it was listed
    return record, read(PerImage, folder / "images" / f"{row}.json")


def _print(found: Difference) -> None:
    for row in found.changed:
        title = f"{row.row} on {row.track}: {_state(row)}"
        numbers = row.numbers if row.kind == "new" else row.moved
        if numbers and row.kind != "removed":
            table = Table("number", "merge base", "now", "images that flipped", title=title)
            for number in numbers:
                table.add_row(number.name, *_cells(number))
            console.print(table)
        else:
            console.print(title)
        for what, before, after in row.facts:
            console.print(f"  {what}: {before} -> {after}", markup=False)
    console.print(_summary(found))


def as_markdown(found: Difference) -> str:
    """For a job's summary: a table of the numbers that moved and of new rows, then what else differs."""
    lines = [f"### Rows against the merge base `{found.base[:12]}`", "", _summary(found), ""]
    if found.changed:
        lines += ["| row | number | merge base | now | images that flipped |", "|---|---|--:|--:|---|"]
    for row in found.changed:
        name = _escaped(f"{row.row} on {row.track}, {_state(row)}")
        numbers = row.numbers if row.kind == "new" else row.moved if row.kind == "changed" else ()
        lines += [f"| {name} | {' | '.join(map(_escaped, (number.name, *_cells(number))))} |" for number in numbers]
        if not numbers:
            lines.append(f"| {name} | | | | |")
    facts = [(row, fact) for row in found.changed for fact in row.facts]
    if facts:
        lines += ["", "<details><summary>other bytes and facts</summary>", ""]
        lines += [
            f"- {row.row} on {row.track}: {_escaped(what)}: `{one}` → `{other}`" for row, (what, one, other) in facts
        ]
        lines += ["", "</details>"]
    return "\n".join(lines)


def _escaped(text: str) -> str:
    """For a cell of a Markdown table: names come from a stranger's files."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "\\`").replace("[", "\\[")


def _state(row: RowDifference) -> str:
    of = f" ({row.of} here)" if row.of else ""
    return f"{row.kind}{of}" + ("" if row.kind != "changed" or row.moved else ", no number moved")


def _cells(number: NumberDifference) -> tuple[str, str, str]:
    counts = ["–" if one is None else f"{one[0]} of {one[1]}" for one in (number.before, number.after)]
    if number.lost is None or number.gained is None:
        return counts[0], counts[1], "not known: no numbers by image" if number.before and number.after else ""
    words = [f"{what} {_some(images)}" for what, images in (("lost", number.lost), ("gained", number.gained)) if images]
    return counts[0], counts[1], "; ".join(words)


def _some(images: tuple[int, ...]) -> str:
    more = f" and {len(images) - SHOWN} more" if len(images) > SHOWN else ""
    return ", ".join(map(str, images[:SHOWN])) + more


def _summary(found: Difference) -> str:
    kinds = [row.kind for row in found.rows]
    moved = sum(row.kind == "changed" and bool(row.moved) for row in found.rows)
    bytes_alone = kinds.count("changed") - moved
    return (
        f"{kinds.count('new')} new, {kinds.count('removed')} removed, {moved} with numbers that moved, "
        f"{bytes_alone} with other bytes or facts alone, {kinds.count('same')} the same"
    )


def _print_changed(chosen: list[str], commit: str, everything: bool, as_json: bool, one_track: bool) -> None:
    """A row a line, with its track where several are asked for, so that a line can follow `rvb repro`."""
    from benchmark.pipeline.changed import changed_rows

    found = changed_rows(chosen, commit, everything)
    if as_json:
        typer.echo(json.dumps([row.model_dump(mode="json") for row in found], indent=1))
        return
    for row in found:
        typer.echo(row.row if one_track else f"{row.row} --track {row.track}")
