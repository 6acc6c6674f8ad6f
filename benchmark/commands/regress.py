"""`rvb regress`: what was built held against what is published."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from benchmark.commands import baselines
from benchmark.commands.publish import all_rows, default_rows
from benchmark.commands.terminal import TrackOption, console
from benchmark.runtime import code, git
from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.runtime.paths import PUBLISHED

if TYPE_CHECKING:
    from benchmark.results.record import Record
    from benchmark.results.regression import Built, RowComparison


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
    from benchmark.loading import tracks
    from benchmark.results.headline import headline_names
    from benchmark.results.regression import RULE, compare_rows

    if mark and published:
        raise BenchmarkError("--mark notes rows that were built, and --published builds none; leave one out")
    commit = git.clean_commit() if mark else ""
    if published:
        for name in tracks.names():
            _check(name, baselines.published_rows(name))
        return
    default = default_rows(track)
    known = sorted({*default, *all_rows(track), *baselines.published_rows(track)})
    for row in rows or ():
        if row not in known:
            raise BenchmarkError(f"{track} has no row {row!r}{near_miss(row, known)}")
    chosen = rows or known
    _check(track, chosen)
    before = {row: one for row in chosen if (one := baselines.published_row(track, row))}
    built = {row: one for row in chosen if (one := baselines.built_row(track, row))}
    if not built and not rows:
        raise BenchmarkError(f"nothing is built here to compare; run `rvb repro --track {track}` first")
    found = compare_rows(before, built, rows or default)
    console.print(f"Rule: {RULE}.")
    headline = {*headline_names(tracks.load(track))}
    for comparison in found:
        _print_row(comparison, headline)
    if mark:
        _mark(track, before, built, commit)
    failed = [one.row for one in found if one.failed]
    if failed:
        raise BenchmarkError(
            f"{len(failed)} of {len(found)} rows are not what was published: {', '.join(failed)}; "
            "find out why, or publish them anew with --reason"
        )
    console.print(f"{len(found)} row{'s are' if len(found) > 1 else ' is'} what was published")


def _mark(track: str, published: Mapping[str, Built], built: Mapping[str, Built], commit: str) -> None:
    """Note `commit` beside each row that its code built byte-identical to what is published."""
    from benchmark.results import reproduced
    from benchmark.results.regression import compare_row

    present = present_code(track)
    same = [
        row for row in published.keys() & built.keys() if not compare_row(published[row], built[row], alike=True).failed
    ]
    reproduced_rows = [row for row in sorted(same) if _codes(built[row].record).items() <= present[row].items()]
    for row in sorted({*same} - {*reproduced_rows}):
        console.print(f"{row} is not marked: older code built it; run `rvb repro {row} --track {track}`")
    reproduced.update(PUBLISHED / track, dict.fromkeys(reproduced_rows, "row"), commit)
    console.print(f"{len(reproduced_rows)} rows noted in {PUBLISHED / track / reproduced.FILE}; commit it")


def _codes(record: Record) -> dict[str, str]:
    """The digest of the code that each step ran by, by the step's name."""
    return {name[5:]: digest for name, digest in record.sha256.items() if name.startswith("code ")}


def present_code(track: str) -> dict[str, dict[str, str]]:
    """Return the digest of the present code of each step, by row and step."""
    from benchmark.pipeline import inputs

    found: dict[str, dict[str, str]] = defaultdict(dict)
    for path, content in inputs.contents(track).items():
        if "code" in content:
            found[path.parent.name][path.stem] = code.combined(content["code"])
    return found


def _check(track: str, rows: list[str]) -> None:
    if faults := baselines.faults(track, rows):
        raise BenchmarkError(faults[0] + (f" (and {len(faults) - 1} faults more)" if faults[1:] else ""))


def _print_row(one: RowComparison, headline: set[str]) -> None:
    """A line for every headline number and whatever differs, then what is to be said of the row as a whole."""
    if one.lines:
        table = Table("metric", "published", "built", "images changed", "p", "verdict", title=one.row)
        for line in one.lines:
            if line.metric in headline or line.verdict != "same":
                changed = "" if line.changed is None else str(line.changed)
                p = "" if line.p is None else f"{line.p:.2g}"
                table.add_row(line.metric, line.published, line.built, changed, p, line.verdict)
        console.print(table)
        same = sum(line.verdict == "same" for line in one.lines)
        console.print(f"{one.row}: {same} of {len(one.lines)} numbers and facts are as published")
    for words in (*one.notes, *([one.problem] if one.problem else [])):
        console.print(f"{one.row} {words}")
