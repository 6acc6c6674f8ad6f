"""README.md's table of the digits track, from the published Records. `python -m leaderboard.readme [--check]`"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml
from pydantic import ValidationError

from benchmark.results import study_table
from benchmark.results.brought import FOLDER, lowered_all
from benchmark.results.headline import headline
from benchmark.results.record import Record
from benchmark.runtime import errors, files
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.track import Track
from leaderboard.rank import TITLES, Row, columns, rank
from leaderboard.reading import read_images

README = Path("README.md")
PUBLISHED = Path("leaderboard/results")
TRACK = "digits"
BEGIN = "<!-- board: written by `python -m leaderboard.readme` -->"
END = "<!-- end of board -->"
LEFT_OUT = ("smoothed", "corrupted")  # numbers that do not rank; the board itself shows them


def main(arguments: list[str]) -> None:
    """Writes the table, or, with --check, only looks.

    Raises:
        BenchmarkError: no published Record, one that does not load, a README without the markers, or a stale table.
    """
    if arguments not in ([], ["--check"]):
        raise BenchmarkError("usage: python -m leaderboard.readme [--check]")
    folder = PUBLISHED / TRACK
    before = README.read_text()
    records = read_published(folder)
    kept = {record.row: folder / "images" / f"{record.row}.json" for record in records}
    again = "bring it back with git, or publish it again"
    images = {row: read_images(path, again) for row, path in kept.items() if path.exists()}
    studies = study_table.read(folder / "studies", "*-seeds.json")
    track = read_track(TRACK)
    records, images, brought = lowered_all(folder / FOLDER, records, images)
    after = put(before, table(rank(records, track, images, studies, brought), track))
    if before == after:
        print(f"{README} fits the published Records")
    elif arguments:
        raise BenchmarkError(
            f"the table in {README} is not that of the Records in {folder}; run `python -m leaderboard.readme`"
        )
    else:
        files.write(README, after)
        print(f"updated the table in {README}")


def read_track(name: str) -> Track:
    return Track.model_validate({"name": name, **yaml.safe_load(Path(f"benchmark/tracks/{name}.yaml").read_text())})


def read_published(folder: Path) -> list[Record]:
    """The Records in `folder`, not in folders below it; a BenchmarkError where there is none or one does not load."""
    found = []
    for path in sorted(folder.glob("*-*.json")):  # <submission>-<variant>; what else stands there is no row
        try:
            found.append(Record.model_validate_json(path.read_text()))
        except ValidationError as error:
            raise errors.explain(error, Record, str(path)) from None
    if not found:
        raise BenchmarkError(f"{folder} holds no Record; run `rvb repro`, then `rvb publish --all`")
    return found


def table(rows: list[Row], track: Track) -> str:
    """Each submission's first row as a Markdown table: accuracies in percent, ranks among all rows; and a line on how far the
    intervals reach.
    """
    every = len(rows)
    rows = [row for row in rows if row == next(r for r in rows if r.record.submission == row.record.submission)]
    names = [name for name in columns(track) if not name.startswith(LEFT_OUT)]
    lines = ["| # | model | " + " | ".join(_title(name) for name in names) + " |", "|--:|---|" + "--:|" * len(names)]
    for row in rows:
        numbers = headline(row.record)
        cells = [f"{100 * numbers[name].value:.3g}" if name in numbers else "–" for name in names]
        model = f"[{_escaped(row.record.title)}](submissions/{row.record.submission})"
        lines.append(f"| {row.rank} | {model} | {' | '.join(cells)} |")
    found = [p for row in rows for name, p in headline(row.record).items() if name in names]
    reach = max(100 * max(p.high - p.value, p.value - p.low) for p in found)
    counted = " or ".join(str(n) for n in sorted({p.n for p in found}))
    left = f" of {every}; each submission's first row is shown" if every > len(rows) else ""
    said = f"95% intervals up to ±{reach:.1f} points. #: ranks not ruled out{left}."
    lines += ["", f"Percent of {counted} test images, {said}"]
    lowered = [f"{_escaped(row.record.title)} ({_escaped(_credited(row))})" for row in rows if row.brought]
    lines += ["", f"Lowered by images that others brought: {'; '.join(lowered)}."] if lowered else []
    return "\n".join(lines)


def _credited(row: Row) -> str:
    return ", ".join(dict.fromkeys(one.credit for one in row.brought))


def _escaped(text: str) -> str:
    """For Markdown: names come from a stranger's files."""
    for sign in "\\|<[]`":
        text = text.replace(sign, f"\\{sign}")
    return text


def _title(name: str) -> str:
    word, _, rest = name.partition(" ")
    return f"{TITLES.get(word, word)} {rest}".strip()


def put(text: str, board: str) -> str:
    """`text` with `board` between its markers; a BenchmarkError when it does not have both, in order, once."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in head + tail:
        raise BenchmarkError(f"{README} needs the lines {BEGIN!r} and {END!r} once, in this order, around its table")
    return f"{head}{BEGIN}\n\n{board}\n\n{END}{tail}"


if __name__ == "__main__":
    errors.run(lambda: main(sys.argv[1:]))
