"""Tables in README.md and the documentation, from the published Records. `python -m leaderboard.readme [--check]`"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from benchmark.records.record import headline
from benchmark.records.study import read_published
from benchmark.runtime import errors, files
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.track import Track
from leaderboard.rank import Row, ball, columns
from leaderboard.reading import published_places, read_rows, read_track


@dataclass(frozen=True)
class Place:
    """A Markdown file with a track's table between its markers: each submission's first row, or all rows."""

    file: Path
    track: str
    all_rows: bool = False


PLACES = (Place(Path("README.md"), "digits"), Place(Path("docs/real-images.md"), "cifar10_jpeg", all_rows=True))
PUBLISHED = Path("leaderboard/results")
BEGIN = "<!-- board: written by `python -m leaderboard.readme` -->"
END = "<!-- end of board -->"
UNIFORM = "clean, attention uniform"
LEFT_OUT = ("smoothed", "corrupted")  # numbers that do not rank; the board itself shows them


def main(arguments: list[str]) -> None:
    """Writes the tables, of the tracks that are named or of all; with --check, only looks.

    Raises:
        BenchmarkError: no published Record, one that does not load, a file without the markers, or a stale table.
    """
    check, chosen = arguments[:1] == ["--check"], [word for word in arguments if word != "--check"]
    if any(word.startswith("-") for word in chosen):
        raise BenchmarkError("usage: python -m leaderboard.readme [--check] [<track> ...]")
    places = [place for place in PLACES if not chosen or place.track in chosen]
    before = {place: place.file.read_text() for place in places}
    after = {
        place: put(text, table(ranked(place.track), read_track(place.track), place.all_rows), place.file)
        for place, text in before.items()
    }
    for place in places:
        if before[place] == after[place]:
            print(f"{place.file} fits the published Records")
        elif check:
            folder = PUBLISHED / place.track
            raise BenchmarkError(
                f"the table in {place.file} is not that of the Records in {folder}; run `python -m leaderboard.readme`"
            )
        else:
            files.write(place.file, after[place])
            print(f"updated the table in {place.file}")


def ranked(name: str) -> list[Row]:
    """Return the published rows of a track, ranked, with contributed attacks counted."""
    folder = PUBLISHED / name
    places = published_places(folder).values()
    if not places:
        raise BenchmarkError(f"{folder} holds no Record; run `rvb repro`, then `rvb publish --all`")
    studies = read_published(folder / "studies", "*-seeds.json")
    return read_rows(read_track(name), places, folder, studies, "bring it back with git, or publish it again")[0]


def table(rows: list[Row], track: Track, all_rows: bool = False) -> str:
    """Return a Markdown table in percent: each submission's first row, or all rows with what their attention does."""
    every = len(rows)
    if not all_rows:
        rows = [row for row in rows if row == next(r for r in rows if r.record.submission == row.record.submission)]
    names = [name for name in columns(track) if not name.startswith(LEFT_OUT)]
    titles = [ball(name) for name in names] + [UNIFORM] * all_rows
    lines = ["| # | model | " + " | ".join(titles) + " |", "|--:|---|" + "--:|" * len(titles)]
    for row in rows:
        numbers, attention = headline(row.record), row.record.attention
        numbers_shown = [numbers.get(name) for name in names] + [attention and attention.uniform.clean] * all_rows
        cells = [f"{100 * p.value:.3g}" if p else "–" for p in numbers_shown]
        linked = f"[{_escaped(row.record.title)}](submissions/{row.record.submission})"
        model = row.record.row if all_rows else linked
        lines.append(f"| {row.rank} | {model} | {' | '.join(cells)} |")
    shown = [p for row in rows for name, p in headline(row.record).items() if name in names]
    reach = max(100 * max(p.high - p.value, p.value - p.low) for p in shown)
    counted = " or ".join(str(n) for n in sorted({p.n for p in shown}))
    left = f" of {every}; each submission's first row is shown" if every > len(rows) else ""
    note = f"95% intervals up to ±{reach:.1f} points. #: ranks not ruled out{left}."
    lines += ["", f"Percent of {counted} test images, {note}"]
    lowered = [f"{_escaped(row.record.title)} ({_escaped(_credited(row))})" for row in rows if row.contributions]
    lines += ["", f"Lowered by contributed images: {'; '.join(lowered)}."] if lowered else []
    return "\n".join(lines)


def _credited(row: Row) -> str:
    return ", ".join(dict.fromkeys(contribution.credit for contribution in row.contributions))


def _escaped(text: str) -> str:
    """Return text escaped for Markdown: names come from submitted files."""
    for sign in "\\|<[]`":
        text = text.replace(sign, f"\\{sign}")
    return text


def put(text: str, board: str, file: Path) -> str:
    """Return `text`, of `file`, with `board` between its markers, which must be there once each, in order."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in head + tail:
        raise BenchmarkError(f"{file} needs the lines {BEGIN!r} and {END!r} once, in this order, around its table")
    return f"{head}{BEGIN}\n\n{board}\n\n{END}{tail}"


if __name__ == "__main__":
    errors.run(lambda: main(sys.argv[1:]))
