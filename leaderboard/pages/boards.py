"""The board of a track: one line a row, the numbers of one threat at a time, and all rows in two charts."""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmark.records.comparison import ERROR
from benchmark.records.record import Record
from benchmark.specs.submission import Paper
from leaderboard.charts.overview import overview
from leaderboard.pages.board_data import Board
from leaderboard.rank import Row, ball, headline_columns
from leaderboard.site import Site
from leaderboard.standings import IMAGES, SEEDS, UNKNOWN, Tie
from leaderboard.times import BUDGETS

NAMED, MANY, FEWER = 6, 100, 3  # tied rows that a board names; of more, the nearest; of a board of MANY rows, FEWER
KINDS = ("robust", "certified", "smoothed")  # numbers that have a radius
PAPER = 80  # characters of a paper that a board's search knows
TESTS = {
    IMAGES: "McNemar's exact test over the images does not tell it from {}.",
    SEEDS: "The images alone would order it, images and seeds together (Welch's interval) do not, against {}.",
    UNKNOWN: "Not compared, since verdicts by image are missing, with {}.",
}


@dataclass(frozen=True)
class Column:
    """A number of the board; its heading says `kind` and `radius`, and `first` is the first one of its kind."""

    name: str
    kind: str
    radius: str
    place: int
    first: bool


@dataclass(frozen=True)
class View:
    """A tab of the board: the columns that it shows, by name; the first that is not clean accuracy sorts the rows."""

    title: str
    names: tuple[str, ...]


def write_pages(site: Site, board: Board) -> None:
    charts = overview(board.rows, board.track)
    for chart in charts:
        site.write(chart.file, chart.csv)
    pairs = len(board.rows) * (len(board.rows) - 1) // 2
    places = {row.record.row: place for place, row in enumerate(board.rows)}
    shown = views(board)
    text = board.render(
        "board.html", "", columns=arranged(board), charts=charts, numbers=numbers(board), views=shown,
        kinds=kinds_over_radii(board), lead=shown[0].names if shown else headline_columns(board.track),
        ties={row.record.row: tied(row, board.ranking, places) for row in board.rows},
        norms=norms(board), pairs=pairs, error=ERROR / max(1, pairs), ranking=board.ranking,
        traits=known_traits(board), budgets=[name for name, _, _ in BUDGETS],
    )  # fmt: skip
    site.write("index.html", text)


def arranged(board: Board) -> list[Column]:
    """Return the columns of numbers in the order of the track."""
    kinds = [name.split()[0] for name in board.columns]
    return [
        Column(name, kind, ball(name.partition(" ")[2]), place, kind != before)
        for place, (name, kind, before) in enumerate(zip(board.columns, kinds, ["", *kinds], strict=False))
    ]


def views(board: Board) -> list[View]:
    """Return a tab for each threat that is attacked, the ranking one first, and one for the certificates.

    A tab of an l2 ball shows what is certified and smoothed in the same ball, where the track has that number.
    """
    tabs = []
    certified = [name for name in board.columns if name.startswith("certified")]
    for name in (name for name in board.columns if name.startswith("robust")):
        threat = name.partition(" ")[2]
        beside = tuple(other for kind in KINDS[1:] if (other := f"{kind} {threat}") in board.columns)
        default = tuple(headline_columns(board.track)) if name == board.ranking else ("clean", name)
        tabs.append(View(ball(threat), tuple(dict.fromkeys((*default, *beside)))))
    if certified:
        middle = sorted(certified, key=lambda name: name not in headline_columns(board.track))[0]
        rest = [name for name in certified if name != middle]
        tabs.append(View("certified", ("clean", middle, *rest)))
    return tabs


def kinds_over_radii(board: Board) -> list[str]:
    """Return the kinds of numbers that the board can show at any l2 radius."""
    present = {name.split()[0] for name in board.columns}
    return [kind for kind in KINDS if kind in present] if board.radii else []


def numbers(board: Board) -> dict[str, Any]:
    """Return what the page's script sorts and filters by: exact counts and ranks, in the order of the columns."""
    rows, ranks, of_traits = [], [], known_traits(board)
    for row in board.rows:
        rows.append([*(cell and cell.count for cell in row.cells), row.record.parameters, row.record.flops])
        own = row.standings
        # short: a plain hyphen, since an en dash takes six bytes here, and 0 for none
        ranks.append([own[name].rank.replace("–", "-") if name in own else 0 for name in board.columns])
    papers = {row.record.submission: _paper(row.record.paper) for row in board.rows}
    return {
        "names": board.columns,
        "rows": rows,
        "ranks": ranks,
        "papers": papers,
        "traits": [
            [values.index(t) for values, t in zip(of_traits, traits(row.record), strict=True)] for row in board.rows
        ],
        "known": of_traits,
        "views": [view.names for view in views(board)],
        "kinds": kinds_over_radii(board),
        "marks": board.marks,
    }


def known_traits(board: Board) -> list[list[str]]:
    """Return the values of each trait that rows of the board have, in order."""
    return [sorted({*values}) for values in zip(*(traits(row.record) for row in board.rows), strict=True)]


def traits(record: Record) -> tuple[str, str, str]:
    """Return by what else rows can be chosen: architecture, whether trained with attacks, certificate."""
    attacked = record.training is not None and record.training.overfitting is not None
    trained = "with attacks" if attacked else "without attacks" if record.training else "elsewhere"
    certificate = record.settings.certificate.name if record.settings.certificate and record.certificate else "none"
    return architecture(record), trained, certificate


def architecture(record: Record) -> str:
    """Return the family of a row's network by the settings of its model: which mixer, or which convolutions."""
    model = {name: str(value) for name, value in dict(record.settings.model).items()}
    if model.get("mixer", "attention") != "attention":
        return f"{model['mixer']} as mixer"
    if model.get("architecture") == "xcit":
        return "XCiT"
    if re.fullmatch(r"\d+c\d+f", model.get("network", "")):
        return "CNN"
    return "ViT" if "heads" in model else "other"


def norms(board: Board) -> list[str]:
    """Return what rows can be chosen by: "robust in Linf", "certified in L2", where a row has such a number above 0."""
    present = {
        f"{name.split()[0]} in {name.split()[1]}"
        for row in board.rows
        for name, cell in zip(board.columns, row.cells, strict=True)
        if cell is not None and cell.count and name.split()[0] in KINDS
    }
    return sorted(present)


def tied(row: Row, name: str, places: Mapping[str, int]) -> str:
    """Return the rows tied with `row` by the number `name` (the NAMED nearest by `places`) and by which test, or ""."""
    standing = row.standings.get(name)
    return " ".join(_sentence(tie, places[row.record.row], places) for tie in standing.ties) if standing else ""


def _sentence(tie: Tie, place: int, places: Mapping[str, int]) -> str:
    named = NAMED if len(places) < MANY else FEWER
    at = bisect(tie.rows, place, key=places.__getitem__)  # tied rows are in the order of the board
    near = sorted(tie.rows[max(0, at - named) : at + named], key=lambda other: abs(places[other] - place))[:named]
    more = f" and {len(tie.rows) - len(near)} more" if len(tie.rows) > len(near) else ""
    return TESTS[tie.test].format(", ".join(sorted(near, key=places.__getitem__)) + more)


def _paper(paper: Paper) -> str:
    return f"{paper.authors[:PAPER]} ({paper.year}): {paper.title[:PAPER]}"
