"""Render one track's board as a static site: `python -m leaderboard.build <track>`.

Writes work/<track>/site, and leaderboard.json and leaderboard.csv beside the rows' names, for git to keep. Times differ from
run to run, so they stand in `times.js`, which no hash covers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmark.records import reproduced
from benchmark.records.record import headline
from benchmark.records.study import read_published
from benchmark.runtime import errors, files
from benchmark.specs.track import Track
from leaderboard import formats
from leaderboard.charts import vega
from leaderboard.pages import boards, compare, papers, row_files
from leaderboard.pages.board_data import Board
from leaderboard.rank import Row, columns
from leaderboard.reading import read_claimed, read_papers, read_rows, read_track
from leaderboard.site import Site
from leaderboard.times import write_times

HERE = Path(__file__).parent
STATIC = HERE / "static"
WORK = Path("work")
PUBLISHED = HERE / "results"
PAGES = (boards, papers, compare, formats)


def build(name: str, *options: str) -> None:
    """Write the board of track `name`; an explained empty page when it has no record.

    Args:
        options: `all` for all rows, in a folder of its own; `--times` to write only how long stages took.
    """
    track, published = read_track(name), PUBLISHED / name
    named, work = Path("pipelines") / name / ("_all" if "all" in options else ""), WORK / name
    site = (work / "all" if "all" in options else work) / "site"
    records = [work / row / "record" for row in files.read_model(named / "rows.json", list[str], "run `rvb pipeline`")]
    studies = read_published(published / "studies")
    places = [(folder / "record.json", folder / "per_image.json") for folder in records]
    rows, images = read_rows(track, places, published, studies)
    if "--times" not in options:
        files.write(named / "leaderboard.json", json.dumps(metrics(rows), indent=1, sort_keys=True) + "\n")
        files.write(named / "leaderboard.csv", table(rows, track))
        claimed = read_claimed(Path("leaderboard/claimed") / name)
        declared = read_papers(work / "inputs" / "papers.json")
        marks = reproduced.read(published)
        render(site, Board(track, rows, work, studies, claimed, marks, images=images, papers=declared))
        print(f"{len(rows)} rows: open {site / 'index.html'}")
    write_times(site, work, rows)


def metrics(rows: list[Row]) -> dict[str, dict[str, float]]:
    """Return the headline numbers by row, for `dvc metrics`."""
    return {row.record.row: {name: p.value for name, p in headline(row.record).items()} for row in rows}


def table(rows: list[Row], track: Track) -> str:
    """Return the board as CSV, for `dvc plots`: a line a row; numbers that a model lacks are empty."""
    lines = [[row.record.row, *("" if cell is None else cell.value for cell in row.cells)] for row in rows]
    return vega.csv_text([["row", *columns(track)], *lines])


def render(folder: Path, board: Board) -> Site:
    """Write every page of the site in `folder`. Unchanged files stay untouched; files that belong to no page are removed."""
    address = board.about.address if board.about else ""
    site = Site(folder, address and f"{address}{board.track.name}/")
    for path in sorted(STATIC.iterdir()):
        site.copy(f"static/{path.name}", path)
    row_files.write_pages(site, board, [_write_script, *(pages.write_pages for pages in PAGES)])
    site.close()
    return site


def _write_script(site: Site, _: Board) -> None:
    site.write(vega.SCRIPT, vega.script(site.folder / vega.SCRIPT))


if __name__ == "__main__":
    errors.run(lambda: build(*sys.argv[1:]))
