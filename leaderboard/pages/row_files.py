"""Each row's files: its page, and the data of the compare page. Of many rows, several processes share the work.

`radii.js` holds all rows' numbers at any l2 radius, for the board to rank by.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
from rich import progress
from rich.console import Console

from benchmark.records.per_image import PerImage
from leaderboard.charts.sandwich import counts_over_radii
from leaderboard.image_radii import image_radii, published_radii
from leaderboard.pages import compare, models
from leaderboard.pages.board_data import Board
from leaderboard.rank import Row
from leaderboard.site import Site

MANY = 50  # rows, from which on processes share the work and the build shows how far it is
TOGETHER = 8  # rows that a process is handed at once

Pages = Callable[[Site, Board], None]
# of a process that writes some of the files
_known: tuple[Site, Board]
_work: list[Pages | Row]


def write_pages(site: Site, board: Board, beside: Sequence[Pages] = ()) -> None:
    """Write each row's files and the pages `beside`. Of many rows, processes that are forked share the work."""
    # of many the first one leaves templates and charts prepared
    alone = board.rows if len(board.rows) < MANY else board.rows[:1]
    counts = {row.record.row: write_row(site, board, row) for row in alone}
    if len(board.rows) > len(alone):
        counts |= _write_side_by_side(site, board, [*beside, *board.rows[len(alone) :]])
    else:
        for pages in beside:
            pages(site, board)
    if board.radii:
        content = json.dumps({"radii": board.radii, "rows": counts}, separators=(",", ":"), sort_keys=True)
        site.write("radii.js", f"const RADII = {content};\n")


def write_row(site: Site, board: Board, row: Row) -> dict[str, list[int]]:
    """Write the files of a row; return its numbers over the l2 radius (`counts_over_radii`)."""
    name, place, evidence = row.record.row, f"models/{row.record.row}", None
    if source := board.source(name):
        site.copy(f"{place}/record.json", source / "record.json")
        stored = (source / "evidence.parquet").read_bytes()
        site.write(f"{place}/evidence.parquet", stored)
        evidence = pq.read_table(pa.BufferReader(stored), use_threads=False)
        radii = image_radii(evidence, row.contributions)
    else:
        site.copy(f"{place}/record.json", board.published / f"{name}.json")
        stored = (board.published / "images" / f"{name}.json").read_bytes()
        site.write(f"{place}/per_image.json", stored)
        images = PerImage.model_validate_json(stored)
        radii = published_radii(images, row.record, math.prod(board.track.data.shape), row.contributions)
    models.write_page(site, board, row, evidence, radii)
    compare.write_row(site, board, row, radii)
    return counts_over_radii(radii, board.radii)


def _write_side_by_side(site: Site, board: Board, work: list[Pages | Row]) -> dict[str, dict[str, list[int]]]:
    """Write pages and rows by forked processes, which have the board already; return by row what write_row does."""
    global _known, _work
    _known, _work = (site, board), work
    counts: dict[str, dict[str, list[int]]] = {}
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), multiprocessing.get_context("fork")) as pool:
        written = pool.map(_write, range(len(work)), chunksize=TOGETHER)
        console = Console(stderr=True)
        for part, numbers in progress.track(written, "pages", total=len(work), console=console, transient=True):
            site.add(part)
            counts |= numbers
    return counts


def _write(place: int) -> tuple[Site, dict[str, dict[str, list[int]]]]:
    (site, board), work = _known, _work[place]
    part = Site(site.folder, site.address)
    if isinstance(work, Row):
        return part, {work.record.row: write_row(part, board, work)}
    work(part, board)
    return part, {}
