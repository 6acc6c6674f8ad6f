"""The board of a track: one line a row, the numbers of one threat at a time, and all rows in two charts."""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmark.records.comparison import ERROR, mcnemar
from benchmark.records.record import Record
from benchmark.specs.submission import Paper
from leaderboard.charts.overview import overview
from leaderboard.pages.board_data import Board
from leaderboard.rank import Row, ball, common_radius, headline_columns, out_of_reach, smoothing_reach
from leaderboard.site import Site
from leaderboard.standings import IMAGES, SEEDS, UNKNOWN, Tie
from leaderboard.times import BUDGETS

NAMED, MANY, FEWER = 6, 100, 3  # tied rows that a board names; of more, the nearest; of a board of MANY rows, FEWER
KINDS = ("robust", "certified", "smoothed")  # numbers that have a radius
TITLE = 40  # characters of the title of a tied row
PAPER = 80  # characters of a paper that a board's search knows
TESTS = {
    IMAGES: "McNemar's exact test over the images does not tell it from {} (an order needs p of at most {:.2g}).",
    SEEDS: "Not ordered against {}: the images alone would, images and seeds together (Welch's interval) do not.",
    UNKNOWN: "Not compared, since verdicts by image are missing, with {}.",
}


@dataclass(frozen=True)
class Column:
    """A number of the board; its heading says `kind` and `radius`, and `first` is the first one of its kind.

    `beyond`: the noise of smoothing cannot certify this radius, so no model has the number.
    """

    name: str
    kind: str
    radius: str
    place: int
    first: bool
    beyond: bool


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
        ties={row.record.row: tied(row, board, places) for row in board.rows}, reach=smoothing_reach(board.track.smoothing),
        norms=norms(board), pairs=pairs, error=ERROR / max(1, pairs), ranking=board.ranking,
        traits=known_traits(board), budgets=[name for name, _, _ in BUDGETS],
    )  # fmt: skip
    site.write("index.html", text)


def arranged(board: Board) -> list[Column]:
    """Return the columns of numbers in the order of the track."""
    kinds, beyond = [name.split()[0] for name in board.columns], out_of_reach(board.track)
    return [
        Column(name, kind, ball(name.partition(" ")[2]), place, kind != before, name in beyond)
        for place, (name, kind, before) in enumerate(zip(board.columns, kinds, ["", *kinds], strict=False))
    ]


def views(board: Board) -> list[View]:
    """Return a tab for each threat that is attacked, the ranking one first, and one for the certificates.

    A tab of an l2 ball shows what is certified and smoothed in the same ball, where the track has that number.
    """
    tabs, beyond = [], out_of_reach(board.track)
    certified = [name for name in board.columns if name.startswith("certified")]
    for name in (name for name in board.columns if name.startswith("robust")):
        threat = name.partition(" ")[2]
        present = [other for kind in KINDS[1:] if (other := f"{kind} {threat}") in board.columns]
        beside = tuple(other for other in present if other not in beyond)
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
    rows, ranks, of_traits, beyond = [], [], known_traits(board), out_of_reach(board.track)
    for row in board.rows:
        cells = zip(board.columns, row.cells, strict=True)
        counts = [None if cell is None or name in beyond else cell.count for name, cell in cells]
        rows.append([*counts, row.record.parameters, row.record.flops])
        own = row.standings
        # short: a plain hyphen, since an en dash takes six bytes here, and 0 for none
        ranks.append([own[name].rank.replace("–", "-") if name in own else 0 for name in board.columns])
    papers = {row.record.submission: _paper(row.record.paper) for row in board.rows}
    return {
        "names": board.columns,
        "rows": rows,
        "ranks": ranks,
        "papers": papers,
        "traits": [[values.index(t) for values, t in zip(of_traits, traits(row.record), strict=True)] for row in board.rows],
        "known": of_traits,
        "views": [view.names for view in views(board)],
        "kinds": kinds_over_radii(board),
        "ranking": board.ranking,
        "marks": board.marks,
        "start": start(board),
        "reach": smoothing_reach(board.track.smoothing),
    }


def start(board: Board) -> float:
    """Return the l2 radius that the board shows first: one at which rows are attacked and certified, where there is one."""
    radius = common_radius(board.track).rpartition(" ")[2]
    choices = [mark for mark in board.marks if f"{mark:g}" == radius] or board.attacked or board.marks
    return choices[len(choices) // 2] if choices else 0.0


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
    """Return what rows can be chosen by: "robust in Linf", "certified in L2", where a row has such a number."""
    beyond = out_of_reach(board.track)
    present = {
        f"{name.split()[0]} in {name.split()[1]}"
        for row in board.rows
        for name, cell in zip(board.columns, row.cells, strict=True)
        if cell is not None and name not in beyond and name.split()[0] in KINDS
    }
    return sorted(present)


def tied(row: Row, board: Board, places: Mapping[str, int]) -> str:
    """Return the rows tied with `row` by the number that ranks (the NAMED nearest by `places`) and by which test, or ""."""
    standing = row.standings.get(board.ranking)
    return " ".join(_sentence(row, tie, board, places) for tie in standing.ties) if standing else ""


def _sentence(row: Row, tie: Tie, board: Board, places: Mapping[str, int]) -> str:
    named = NAMED if len(places) < MANY else FEWER
    place, rows = places[row.record.row], sorted(tie.rows, key=places.__getitem__)
    at = bisect(rows, place, key=places.__getitem__)
    near = sorted(rows[max(0, at - named) : at + named], key=lambda other: abs(places[other] - place))[:named]
    near.sort(key=places.__getitem__)
    names = [_title(board.rows[places[other]].record) for other in near]
    if tie.test == IMAGES and board.images:
        own, *others = (board.images[name][board.ranking] for name in (row.record.row, *near))
        names = [f"{name} (p {mcnemar(own, other):.2g})" for name, other in zip(names, others, strict=True)]
    more = f" and {len(rows) - len(near)} more" if len(rows) > len(near) else ""
    return TESTS[tie.test].format(", ".join(names) + more, ERROR / max(1, len(places) * (len(places) - 1) // 2))


def _title(record: Record) -> str:
    """Return the start of a title, isolated, so that marks of direction in it turn no other text."""
    short = record.title if len(record.title) <= TITLE else f"{record.title[:TITLE]}…"
    return f"\u2068{short}\u2069"


def _paper(paper: Paper) -> str:
    return f"{paper.authors[:PAPER]} ({paper.year}): {paper.title[:PAPER]}"
