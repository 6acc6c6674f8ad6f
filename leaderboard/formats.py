"""The board for machines: `leaderboard.json` with its schema, `leaderboard.csv`, and rows as RobustBench writes them."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field

from benchmark.records.accuracy import Proportion
from benchmark.records.record import Record, headline
from benchmark.records.robustbench import exported
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.base import Frozen
from benchmark.specs.track import Track
from leaderboard.charts.vega import csv_text
from leaderboard.pages.board_data import Board
from leaderboard.rank import Row, label
from leaderboard.site import Site

SCHEMA = "leaderboard.schema.json"


class SpreadOverSeeds(Frozen):
    """A number over trainings that differ in their seed alone; shares of images."""

    mean: float
    low: float
    high: float


class BoardRow(Frozen):
    """One model. `rank` has the first and the last rank that are left to it by the number that ranks, `ranks` those by each
    number; `record` is the address of its Record.
    """

    row: str
    submission: str
    variant: str
    title: str
    paper: str
    year: int
    rank: tuple[int, int]
    ranks: dict[str, tuple[int, int]]
    trust: str
    division: str
    warnings: tuple[str, ...] | None = Field(
        description="checks that warn of attacks that may have failed; null for none made"
    )
    numbers: dict[str, Proportion]
    seeds: dict[str, SpreadOverSeeds] = Field(description="by number, where a study over its seeds is published")
    parameters: int
    flops: int
    record: str


class MachineBoard(Frozen):
    """A track's board. Accuracies are shares of the `n` images; radii are in pixels of [0, 1]."""

    schema_version: Literal[2] = 2
    track: str
    track_version: int
    title: str
    columns: tuple[str, ...]
    labels: dict[str, str] = Field(description="by column its name in words, such as `robust Linf 8/255`")
    rows: tuple[BoardRow, ...]


def write_pages(site: Site, board: Board) -> None:
    made = machine_board(board)
    # no indent, with which Python's encoder is slow; pydantic's would write null for what is not finite
    site.write("leaderboard.json", json.dumps(made.model_dump(mode="json"), sort_keys=True, allow_nan=False) + "\n")
    site.write(SCHEMA, json.dumps(MachineBoard.model_json_schema(), indent=1, sort_keys=True) + "\n")
    site.write("leaderboard.csv", as_csv(made))


def robustbench(record: Record, track: Track) -> dict[str, dict[str, Any]]:
    """Return the row in RobustBench's format, by place on the site: one file for each threat model with AutoAttack."""
    rows = {}
    for threat in track.threats:
        try:
            row = exported(record, track, threat)
        except BenchmarkError:  # not judged by AutoAttack there, which such a row is about
            continue
        rows[f"robustbench/{threat.label.replace(' ', '-')}/{record.row}.json"] = row
    return rows


def machine_board(board: Board) -> MachineBoard:
    return MachineBoard(
        track=board.track.name,
        track_version=board.track.version,
        title=board.track.title,
        columns=tuple(board.columns),
        labels={name: label(name) for name in board.columns},
        rows=tuple(_row(row, board.columns) for row in board.rows),
    )


def _row(row: Row, columns: list[str]) -> BoardRow:
    record, checks = row.record, row.record.reliability
    spreads = {name: spread for name, spread in zip(columns, row.spreads, strict=True) if spread is not None}
    return BoardRow(
        row=record.row,
        submission=record.submission,
        variant=record.variant,
        title=record.title,
        paper=record.paper.title,
        year=record.paper.year,
        rank=(row.best, row.worst),
        ranks={name: (standing.best, standing.worst) for name, standing in row.standings.items()},
        trust=record.trust,
        division=record.division,
        warnings=tuple(signal.name for signal in checks.failing) if checks else None,
        numbers=headline(record),
        seeds={name: SpreadOverSeeds(mean=s.mean, low=s.low, high=s.high) for name, s in spreads.items()},
        parameters=record.parameters,
        flops=record.flops,
        record=f"models/{record.row}/record.json",
    )


def as_csv(board: MachineBoard) -> str:
    """Return a line a row: each number and the ends of its interval, empty if the model has no such number."""
    numbers = [f"{name}{part}" for name in board.columns for part in ("", " low", " high")]
    lines: list[list[object]] = [["rank", "row", "title", "trust", "division", *numbers, "parameters", "flops"]]
    for row in board.rows:
        shares = (row.numbers.get(name) for name in board.columns)
        cells = [cell for p in shares for cell in ((p.value, p.low, p.high) if p else ("", "", ""))]
        ranks = f"{row.rank[0]}-{row.rank[1]}"
        lines.append([ranks, row.row, row.title, row.trust, row.division, *cells, row.parameters, row.flops])
    return csv_text(lines)
