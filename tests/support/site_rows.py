"""Rows of a board as their stages leave them, and found again on its page."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmark.results import study_table
from benchmark.results.record import Record
from benchmark.specs.track import Track
from leaderboard import build
from leaderboard.pages.board_data import Board
from leaderboard.rank import Row


def write(row: Record, work: Path, images: int = 1, **columns: float) -> Path:
    """The Record with evidence on one image or more, all alike, rightly classified, and these columns; its folder."""
    folder = work / row.row / "record"
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(row.model_dump_json())
    seen = {"label": 3, "clean_prediction": 3, "clean_margin": 0.5, **columns}
    evidence = {"image": [*range(images)], **{name: [value] * images for name, value in seen.items()}}
    pq.write_table(pa.table(evidence), folder / "evidence.parquet")
    return folder


def render(site: Path, track: Track, rows: list[Row], work: Path, **more: object) -> None:
    """The site of these rows, with the studies that are published for the track."""
    studies = study_table.read(build.PUBLISHED / track.name / "studies")
    build.render(site, Board(track, rows, work, studies, **more))


def board_row(index: str, row: str) -> str:
    """The cells of a row in the board's page."""
    found = re.search(rf'<tr data-row="{row}">(.*?)</tr>', index, re.S)
    assert found
    return found[1]
