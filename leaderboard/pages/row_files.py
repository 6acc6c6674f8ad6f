"""Each row's files: its page, and the data of the compare page. Several processes write many rows.

`radii.js` holds all rows' numbers at any l2 radius, for the board to rank by.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
from rich import progress
from rich.console import Console

from benchmark.records.per_image import PerImage
from benchmark.runtime import files
from leaderboard.charts.sandwich import counts_over_radii, radii_of
from leaderboard.image_radii import image_radii, published_radii
from leaderboard.pages import compare, models
from leaderboard.pages.board_data import Board
from leaderboard.rank import Row
from leaderboard.site import Site

MANY = 50  # rows, from which on processes share them and the build shows how far it is
TOGETHER = 8  # rows that a process is handed at once

_known: tuple[Site, Board]  # of a process that writes some of the rows: the site, and what it shows


def write_pages(site: Site, board: Board) -> None:
    # of many the first one leaves templates and charts prepared
    alone = board.rows if len(board.rows) < MANY else board.rows[:1]
    counts = {row.record.row: write_row(site, board, row) for row in alone}
    if len(board.rows) > len(alone):
        counts |= _write_side_by_side(site, board, len(alone))
    if radii := radii_of(board.track):
        content = json.dumps({"radii": radii, "rows": counts}, separators=(",", ":"), sort_keys=True)
        site.write("radii.js", f"const RADII = {content};\n")


def write_row(site: Site, board: Board, row: Row) -> dict[str, list[int]]:
    """Write the files of a row; return its numbers over the l2 radius (`counts_over_radii`)."""
    name, place, evidence = row.record.row, f"models/{row.record.row}", None
    if source := board.source(name):
        site.copy(f"{place}/record.json", source / "record.json")
        stored = (source / "evidence.parquet").read_bytes()
        site.write(f"{place}/evidence.parquet", stored)
        evidence = pq.read_table(pa.BufferReader(stored), use_threads=False)
        radii = image_radii(evidence, row.brought)
    else:
        site.copy(f"{place}/record.json", board.published / f"{name}.json")
        site.copy(f"{place}/per_image.json", board.published / "images" / f"{name}.json")
        images = files.read_model(board.published / "images" / f"{name}.json", PerImage, "bring it back with git")
        radii = published_radii(images, row.record, math.prod(board.track.data.shape), row.brought)
    models.write_page(site, board, row, evidence, radii)
    compare.write_row(site, board, row, radii)
    return counts_over_radii(radii, radii_of(board.track))


def _write_side_by_side(site: Site, board: Board, begin: int) -> dict[str, dict[str, list[int]]]:
    """Write the rows from place `begin` on by forked processes, which have the board already; return what write_row does."""
    global _known
    _known = site, board
    places, shown, counts = range(begin, len(board.rows)), Console(stderr=True), {}
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), multiprocessing.get_context("fork")) as pool:
        written = pool.map(_write, places, chunksize=TOGETHER)
        for place, (part, numbers) in zip(
            places,
            progress.track(written, "model pages", total=len(places), console=shown, transient=True),
            strict=True,
        ):
            site.add(part)
            counts[board.rows[place].record.row] = numbers
    return counts


def _write(place: int) -> tuple[Site, dict[str, list[int]]]:
    site, board = _known
    part = Site(site.folder, site.address)
    return part, write_row(part, board, board.rows[place])
