"""`rvb regress`: compare built rows with the published ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Annotated

import typer
from rich.table import Table

from benchmark.commands import baselines
from benchmark.commands.publish import rows_of
from benchmark.commands.terminal import TrackOption, console
from benchmark.pipeline import inputs
from benchmark.records import reproduced
from benchmark.records.record import headline_names
from benchmark.records.regression import RULE, Built, RowComparison, compare_row, compare_rows
from benchmark.runtime import code, git
from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.runtime.paths import PUBLISHED
from benchmark.specs import tracks


def regress(
    rows: Annotated[list[str] | None, typer.Argument(help="<submission>-<variant> (default: every row).")] = None,
    track: TrackOption = "digits",
    published: Annotated[
        bool, typer.Option("--published", help="Check what is published for itself; nothing needs to be built.")
    ] = False,
    mark: Annotated[
        bool, typer.Option("--mark", help="Note the commit beside each row that is byte-identical.")
    ] = False,
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
    present, marked = present_code(track), []
    for row in sorted(published.keys() & built.keys()):
        if compare_row(published[row], built[row], alike=True).failed:
            continue
        if built[row].record.codes.items() <= present[row].items():
            marked.append(row)
        else:
            console.print(f"{row} is not marked: older code built it; run `rvb repro {row} --track {track}`")
    reproduced.update(PUBLISHED / track, dict.fromkeys(marked, "row"), commit)
    console.print(f"{len(marked)} rows noted in {PUBLISHED / track / reproduced.FILE}; commit it")


def present_code(track: str) -> dict[str, dict[str, str]]:
    """Return the digest of each step's present code, by row and step."""
    digests: dict[str, dict[str, str]] = defaultdict(dict)
    for path, content in inputs.contents(track).items():
        if "code" in content:
            digests[path.parent.name][path.stem] = code.combined(content["code"])
    return digests


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
