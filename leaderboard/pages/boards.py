"""The board of a track: one line a row, three numbers first, the rest by a switch, and all rows in two charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmark.records.comparison import ERROR
from benchmark.specs.submission import Paper
from leaderboard.charts.overview import overview
from leaderboard.pages.board_data import Board
from leaderboard.rank import Row, ball, columns, headline_columns, ranking_name
from leaderboard.site import Site
from leaderboard.standings import IMAGES, SEEDS, UNKNOWN, Tie

NAMED = 6  # tied rows that a board names; of more, the nearest
KINDS = {"robust": "AutoAttack"}  # what a heading says in place of a number's first word
WORDS = {"robust": "attacked", "certified": "certified", "smoothed": "smoothed"}
PAPER = 80  # characters of a paper that a board's search knows
TESTS = {
    IMAGES: "McNemar's exact test over the images does not tell it from {}.",
    SEEDS: "The images alone would order it, images and seeds together (Welch's interval) do not, against {}.",
    UNKNOWN: "Not compared, since verdicts by image are missing, with {}.",
}


@dataclass(frozen=True)
class Column:
    """A number of the board, `place` among the track's columns; its heading says `kind` and `radius`."""

    name: str
    kind: str
    radius: str
    place: int
    first: bool
    ranked: bool


def write_pages(site: Site, board: Board) -> None:
    charts = overview(board.rows, board.track)
    for chart in charts:
        site.write(chart.file, chart.csv)
    lead, rest = arranged(board)
    pairs = len(board.rows) * (len(board.rows) - 1) // 2
    places = {row.record.row: place for place, row in enumerate(board.rows)}
    text = board.render(
        "board.html", "", lead=lead, rest=rest, charts=charts, numbers=numbers(board, [*lead, *rest]),
        ties={row.record.row: tied(row, ranking_name(board.track), places) for row in board.rows},
        norms=norms(board), pairs=pairs, error=ERROR / max(1, pairs),
    )  # fmt: skip
    site.write("index.html", text)


def arranged(board: Board) -> tuple[list[Column], list[Column]]:
    """The columns that are always shown, and those behind the switch, in the order of the page."""
    first = headline_columns(board.track)
    names = [*first, *(name for name in columns(board.track) if name not in first)]
    kinds = ["", *(name.split()[0] for name in names)]
    made = [
        Column(
            name,
            KINDS.get(kind, kind),
            ball(name.partition(" ")[2]),
            board.columns.index(name),
            kind != before,
            name.startswith("robust"),
        )
        for name, kind, before in zip(names, kinds[1:], kinds, strict=False)
    ]
    return made[: len(first)], made[len(first) :]


def numbers(board: Board, shown: Sequence[Column]) -> dict[str, Any]:
    """What the page's script sorts and filters by: exact counts and ranks, in the order of the columns, and the papers."""
    rows, ranks = [], []
    for row in board.rows:
        cells = [row.cells[column.place] for column in shown]
        rows.append([*(cell and cell.count for cell in cells), row.record.parameters, row.record.flops])
        own = row.standings
        # a plain hyphen: an en dash takes six bytes here
        ranks.append([own[c.name].rank.replace("–", "-") if c.name in own else None for c in shown])
    papers = {row.record.submission: _paper(row.record.paper) for row in board.rows}
    return {"names": [column.name for column in shown], "rows": rows, "ranks": ranks, "papers": papers}


def norms(board: Board) -> list[str]:
    """What rows can be chosen by: "attacked in Linf", "certified in L2", where a row has such a number above 0."""
    found = {
        f"{WORDS[name.split()[0]]} in {name.split()[1]}"
        for row in board.rows
        for name, cell in zip(board.columns, row.cells, strict=True)
        if cell is not None and cell.count and name.split()[0] in WORDS
    }
    return sorted(found)


def tied(row: Row, name: str, places: Mapping[str, int]) -> str:
    """Return the rows tied with `row` by the number `name` (the NAMED nearest by `places`) and by which test, or ""."""
    standing = row.standings.get(name)
    return " ".join(_sentence(tie, places[row.record.row], places) for tie in standing.ties) if standing else ""


def _sentence(tie: Tie, place: int, places: Mapping[str, int]) -> str:
    near = sorted(tie.rows, key=lambda other: abs(places[other] - place))[:NAMED]
    more = f" and {len(tie.rows) - len(near)} more" if len(tie.rows) > len(near) else ""
    return TESTS[tie.test].format(", ".join(sorted(near, key=lambda other: places[other])) + more)


def _paper(paper: Paper) -> str:
    return f"{paper.authors[:PAPER]} ({paper.year}): {paper.title[:PAPER]}"
