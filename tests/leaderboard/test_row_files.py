"""Rows' files are the same whether one process writes them or several."""

from __future__ import annotations

from pathlib import Path

import pytest
import site_rows
from tiny_record import record

from benchmark.loading import tracks
from leaderboard.pages import row_files
from leaderboard.pages.board_data import Board
from leaderboard.rank import rank
from leaderboard.site import Site

DIGITS = tracks.load("digits")


def board(work: Path, count: int) -> Board:
    records = [record(f"Model{place}", 40, place, certified=20) for place in range(count)]
    for made in records:
        site_rows.write(made, work, images=3, certified_l2=0.2)
    return Board(DIGITS, rank(records, DIGITS), work)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_processes_side_by_side_write_what_one_writes(tmp_path, monkeypatch) -> None:
    made = board(tmp_path / "work", 5)
    alone, together, again = (Site(tmp_path / name) for name in ("alone", "together", "together"))
    row_files.write_pages(alone, made)
    monkeypatch.setattr(row_files, "MANY", 2)
    monkeypatch.setattr(row_files, "TOGETHER", 1)
    row_files.write_pages(together, made)
    assert contents(together.folder) == contents(alone.folder)
    assert (together.pages, together.written) == (alone.pages, alone.written)
    assert len(together.pages) == 5
    row_files.write_pages(again, made)
    assert again.written == 0
    again.close()
    assert contents(again.folder) == contents(alone.folder), "what other processes wrote is kept"


def test_a_row_that_cannot_be_written_ends_the_build(tmp_path, monkeypatch) -> None:
    made = board(tmp_path / "work", 5)
    (tmp_path / "work" / made.rows[3].record.row / "record" / "evidence.parquet").unlink()
    monkeypatch.setattr(row_files, "MANY", 2)
    with pytest.raises(FileNotFoundError, match="evidence"):
        row_files.write_pages(Site(tmp_path / "site"), made)
