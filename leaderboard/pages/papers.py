"""A page for each paper with its reproduced tables and figures, claimed and rebuilt; and a list of papers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from markupsafe import Markup

from benchmark.records.accuracy import Proportion
from benchmark.records.record import headline
from benchmark.records.reproduced import Reproduced
from benchmark.records.study import DeclaredPaper
from benchmark.records.study_points import PointSheet, point_sheets, points_csv
from benchmark.records.study_table import Sheet, Table, images_of, sheets
from benchmark.specs.seeds import study_name, variant_of
from benchmark.specs.study import Study, run_command
from benchmark.specs.submission import Claim, Paper
from leaderboard.charts.studies import figures
from leaderboard.pages.board_data import Board
from leaderboard.rank import Row
from leaderboard.record_claims import name_of
from leaderboard.site import Site
from leaderboard.study_claims import TESTED, VERDICTS, ClaimSheet, Tally, claim_sheet


@dataclass(frozen=True)
class Shown:
    """One study: `reproduced` is None if unknown; `download` is the file of its points."""

    table: Table
    charts: Sequence[tuple[str, Markup]]
    sheets: Sequence[Sheet]
    points: Sequence[PointSheet]
    reproduced: Reproduced | None
    download: str

    @property
    def fewer(self) -> dict[str, int]:
        """Return the numbers that count fewer images than the study has, and how many, where their names do not say it."""
        result = self.table.study.result
        counted = {column.title: images_of(self.table.study, column.label) for column in self.table.columns}
        return {title: n for title, n in counted.items() if n < result.n and " images)" not in title}


def shown(tables: Iterable[Table], marks: Mapping[str, Reproduced]) -> tuple[tuple[Shown, ...], dict[str, str]]:
    """Return studies as a page shows them, and the CSV files of their points."""
    studies, files = [], {}
    for table in tables:
        text, result = points_csv(table.study), table.study.result
        download = f"points-{result.name}.csv" if text else ""
        if text:
            files[download] = text
        studies.append(Shown(table, figures(table), sheets(table), point_sheets(table.study), marks.get(result.id), download))
    return tuple(studies), files


@dataclass(frozen=True)
class PaperStudy:
    """A table or figure of a paper; `shown` is None if it was not run.

    Attributes:
        study: as it was published, or as it is declared where it was not run.
        missing: declared settings that were not run.
    """

    name: str
    study: Study
    sheet: ClaimSheet | None
    shown: Shown | None
    missing: tuple[str, ...]
    command: str

    @property
    def tally(self) -> Tally:
        return Tally.of([self.sheet])

    @property
    def settings(self) -> int:
        return len(self.study.grid())


@dataclass(frozen=True)
class PaperClaim:
    """A number that a paper claims for this track, and the rows that have this number."""

    claim: Claim
    measured: tuple[tuple[Row, Proportion], ...]


@dataclass(frozen=True)
class PaperPage:
    """The contents of the page of a submission.

    Attributes:
        extensions: variants that the paper does not have.
        studies: tables and figures, in the order of their sources.
        seeds: studies over one row's seeds alone; `without_seeds` are the rows that have none.
        comparable, elsewhere: the submission's claims for this track, and for others.
    """

    submission: str
    summary: str
    paper: Paper | None
    rows: tuple[Row, ...]
    extensions: tuple[str, ...]
    studies: tuple[PaperStudy, ...]
    seeds: tuple[PaperStudy, ...]
    without_seeds: tuple[Row, ...]
    comparable: tuple[PaperClaim, ...]
    elsewhere: tuple[Claim, ...]

    @property
    def title(self) -> str:
        return self.paper.title if self.paper else self.submission

    @cached_property
    def tally(self) -> Tally:
        return Tally.of(study.sheet for study in self.studies)

    @property
    def run(self) -> int:
        return sum(study.shown is not None for study in self.studies)


def write_pages(site: Site, board: Board) -> None:
    pages = paper_pages(board)
    for page, files in pages:
        place = f"papers/{page.submission}"
        for name, text in files.items():
            site.write(f"{place}/{name}", text)
        places = [
            i
            for i, name in enumerate(board.columns)
            if name.startswith(("clean", "robust", "certified")) and any(row.cells[i] for row in page.rows)
        ]
        site.write(f"{place}/index.html", board.render("paper.html", "../../", page=page, columns=places))
    there = {page.submission for page, _ in pages}
    idle = {name: declared for name, declared in board.papers.items() if name not in there}
    counted = Tally.of(study.sheet for page, _ in pages for study in page.studies)
    seen = {verdict for verdict in VERDICTS if counted[verdict]} | ({*TESTED} if counted.tested else set())
    verdicts = [verdict for verdict in VERDICTS if verdict in seen]
    listed = [page for page, _ in pages]
    site.write("papers/index.html", board.render("papers.html", "../", pages=listed, idle=idle, verdicts=verdicts))


def paper_pages(board: Board) -> list[tuple[PaperPage, dict[str, str]]]:
    """Return each submission with a row or a published study, newest paper first, with the files beside its page."""
    rows: dict[str, list[Row]] = {}
    tables: dict[str, list[Table]] = {}
    for row in board.rows:
        rows.setdefault(row.record.submission, []).append(row)
    for table in board.tables:
        tables.setdefault(table.study.result.submission, []).append(table)
    pages = [_page(board, name, rows.get(name, []), tables.get(name, [])) for name in {**rows, **tables}]
    return sorted(pages, key=lambda page: (-(page[0].paper.year if page[0].paper else 0), page[0].submission))


def _page(board: Board, submission: str, rows: Sequence[Row], tables: Sequence[Table]) -> tuple[PaperPage, dict[str, str]]:
    declared = board.papers.get(submission)
    claims = declared.claims if declared else rows[0].record.claims if rows else ()
    run, files = _run(board, tables, declared, claims)
    studies = [*run, *_not_run(board, submission, declared, {study.name for study in run})]
    names = {study.name for study in run}
    page = PaperPage(
        submission,
        declared.summary if declared else rows[0].record.summary if rows else "",
        declared.paper if declared else rows[0].record.paper if rows else None,
        tuple(rows),
        declared.extensions if declared else (),
        tuple(sorted((s for s in studies if not variant_of(s.name)), key=lambda s: _natural(s.study.source))),
        tuple(study for study in run if variant_of(study.name)),
        tuple(row for row in rows if row.record.training and study_name(row.record.variant) not in names),
        tuple(PaperClaim(c, _measured(c, rows)) for c in claims if c.track == board.track.name),
        tuple(claim for claim in claims if claim.track != board.track.name),
    )
    return page, files


def _run(
    board: Board, tables: Sequence[Table], declared: DeclaredPaper | None, claims: Sequence[Claim]
) -> tuple[list[PaperStudy], dict[str, str]]:
    pictured, files = shown(tables, board.reproduced)
    studies = []
    for part in pictured:
        study, result = part.table.study.study, part.table.study.result
        asked = declared.studies.get(result.name) if declared else None
        there = {cell.name for cell in result.cells}
        missing = tuple(cell.name for cell in (asked or study).grid() if cell.name not in there)
        studies.append(PaperStudy(result.name, study, claim_sheet(study, part.table, claims), part, missing, result.command))
    return studies, files


def _not_run(board: Board, submission: str, declared: DeclaredPaper | None, run: set[str]) -> list[PaperStudy]:
    """Return declared tables and figures without a published result, without studies over seeds."""
    return [
        PaperStudy(name, study, claim_sheet(study), None, (), run_command(f"{submission}-{name}", board.track.name))
        for name, study in (declared.studies.items() if declared else ())
        if name not in run and not variant_of(name)
    ]


def _measured(claim: Claim, rows: Sequence[Row]) -> tuple[tuple[Row, Proportion], ...]:
    """Return the rows that a claim is about and that have its number. A claim that names no variant is about all."""
    named = [(row, name_of(claim, row.record)) for row in rows if claim.variant in (None, row.record.variant)]
    return tuple((row, headline(row.record)[name]) for row, name in named if name)


def _natural(source: str) -> list[tuple[int, str]]:
    """Return a key that sorts Table 2 before Table 10, and other sources, which begin with a small letter, last."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", source)]
