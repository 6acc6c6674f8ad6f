"""Renders one track's board as a static site. `python -m leaderboard.build <track>`

Reads the records that the track's rows name, writes work/<track>/site and, beside those rows' names and for git to keep,
leaderboard.json and leaderboard.csv. Nothing is fetched when the site is viewed. Times differ from run to run, so they
stand in `times.js`, which no hash covers; the pages show them when the file is there.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import yaml

from benchmark.results import reproduced, study_table
from benchmark.results.brought import FOLDER, lowered_all
from benchmark.results.record import headline
from benchmark.runtime import errors, files
from benchmark.specs.track import Track
from leaderboard import formats
from leaderboard.charts import vega
from leaderboard.pages import boards, compare, papers, row_files
from leaderboard.pages.board_data import Board
from leaderboard.rank import Row, columns, rank
from leaderboard.reading import read_claimed, read_images, read_papers, read_record
from leaderboard.site import Site
from leaderboard.times import write_times

HERE = Path(__file__).parent
STATIC = HERE / "static"
WORK = Path("work")
PUBLISHED = HERE / "results"
PAGES = (row_files, boards, papers, compare, formats)


def build(name: str, *options: str) -> None:
    """Writes the board of track `name`; an explained empty page when it has no record.

    Args:
        options: `all` for the board with the rows that the default one leaves out, in a folder of its own; `--times` to
            write anew how long stages took, and nothing else.
    """
    track = Track.model_validate({"name": name, **yaml.safe_load(Path(f"benchmark/tracks/{name}.yaml").read_text())})
    named, work = Path("pipelines") / name / ("_all" if "all" in options else ""), WORK / name
    folder = work / "all" if "all" in options else work
    wanted = json.loads((named / "rows.json").read_text())
    studies = study_table.read(PUBLISHED / name / "studies")
    records = [read_record(work / row / "record" / "record.json") for row in wanted]
    images = {record.row: read_images(work / record.row / "record" / "per_image.json") for record in records}
    records, images, brought = lowered_all(PUBLISHED / name / FOLDER, records, images)
    rows = rank(records, track, images, studies, brought)
    if "--times" in options:
        write_times(folder / "site", work, rows)
        return
    files.write(named / "leaderboard.json", json.dumps(metrics(rows), indent=1, sort_keys=True) + "\n")
    files.write(named / "leaderboard.csv", table(rows, track))
    claimed = read_claimed(Path("leaderboard/claimed") / name)
    declared = read_papers(work / "inputs" / "papers.json")
    marks = reproduced.read(PUBLISHED / name)
    board = Board(track, rows, work, studies, claimed, marks, images=images, papers=declared)
    render(folder / "site", board)
    write_times(folder / "site", work, rows)
    print(f"{len(rows)} rows: open {folder / 'site' / 'index.html'}")


def metrics(rows: list[Row]) -> dict[str, dict[str, float]]:
    """Headline numbers by row, for `dvc metrics`."""
    return {row.record.row: {name: p.value for name, p in headline(row.record).items()} for row in rows}


def table(rows: list[Row], track: Track) -> str:
    """The board as CSV, for `dvc plots`: a line a row; numbers that a model lacks are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", *columns(track)])
    for row in rows:
        writer.writerow([row.record.row, *("" if cell is None else cell.value for cell in row.cells)])
    return text.getvalue()


def render(folder: Path, board: Board) -> Site:
    """Every page of the site, in `folder`: what has not changed stays, what belongs to no page any more goes."""
    site = Site(folder)
    for path in sorted(STATIC.iterdir()):
        site.copy(f"static/{path.name}", path)
    site.write(vega.SCRIPT, vega.script())
    for pages in PAGES:
        pages.write_pages(site, board)
    site.close()
    return site


if __name__ == "__main__":
    errors.run(lambda: build(*sys.argv[1:]))
