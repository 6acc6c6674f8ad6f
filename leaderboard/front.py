"""The whole site: a front page with a card a track, and each track's board, in work/site. `python -m leaderboard.front`

Rows that are built in work/ are shown with their evidence, published ones by what git keeps: Record, verdicts by image,
weights. What has not changed is not written again.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import yaml

from benchmark.results import reproduced, study_table
from benchmark.results.brought import FOLDER, Scores, lowered_all
from benchmark.results.proportion import Proportion
from benchmark.results.record import Record, headline
from benchmark.results.study import PublishedStudy
from benchmark.runtime import errors, files
from benchmark.specs.track import Track
from leaderboard import build
from leaderboard.changes import changes, commit_here, feed, last_change
from leaderboard.charts import vega
from leaderboard.charts.overview import overview
from leaderboard.citation import bibtex_of_benchmark
from leaderboard.pages.board_data import ENVIRONMENT, About, Board, of_no_paper
from leaderboard.rank import Row, headline_columns, rank, ranking_name
from leaderboard.reading import read_claimed, read_images, read_papers, read_record
from leaderboard.site import Site
from leaderboard.times import write_times

SITE = Path("work/site")
DOCS = Path("build/docs")  # where mkdocs writes; the site takes it along where it is
BEST = 3  # rows of a card


@dataclass(frozen=True)
class Card:
    """A track on the front page: `rows` are the published and the built ones."""

    track: Track
    rows: Sequence[Row]
    studies: int
    changed: str

    @property
    def pages(self) -> bool:
        return bool(self.rows or self.studies)

    @property
    def robust(self) -> tuple[str, list[tuple[Row, Proportion]]]:
        """The number that ranks, and the best rows by it."""
        name = ranking_name(self.track)
        return name, self._best(name)

    @property
    def certified(self) -> tuple[str, list[tuple[Row, Proportion]]]:
        """The same of the certified number that boards show first; "" where the track has none."""
        name = next((name for name in headline_columns(self.track) if name.startswith("certified")), "")
        return name, self._best(name)

    def _best(self, name: str) -> list[tuple[Row, Proportion]]:
        known = [(row, headline(row.record)[name]) for row in self.rows if name in headline(row.record)]
        return sorted(known, key=lambda pair: (-pair[1].value, pair[0].record.row))[:BEST]


def render(folder: Path, address: str, repository: str = "") -> int:
    """Writes the site; how many files were new or other than before.

    Args:
        repository: the address of the source, which each page then links.
        address: where the site will be, ending in "/", which feed and site map need; "" for one that is read from files.
    """
    published = changes(build.PUBLISHED)
    documentation = (DOCS / "index.html").exists()
    commit, day = commit_here()
    paths = sorted(Path("benchmark/tracks").glob("*.yaml"))
    tracks = [Track.model_validate({"name": path.stem, **yaml.safe_load(path.read_text())}) for path in paths]
    about = About(version("robust-vit-bench"), commit, day, repository, documentation, _real(tracks))
    written, cards, pages, charts = 0, [], ["index.html"], list[vega.Chart]()
    for track in tracks:
        board, card = _board(track, last_change(published, track.name), about)
        cards.append(card)
        if card.pages:
            print(f"{track.name}: {len(board.rows)} rows, {card.studies} studies", file=sys.stderr, flush=True)
            site = build.render(folder / track.name, board)
            write_times(folder / track.name, board.folder, list(board.rows), board.published)
            written += site.written
            pages += [f"{track.name}/{page}" for page in site.pages]
            charts = charts or overview(board.rows, track)
        else:
            shutil.rmtree(folder / track.name, ignore_errors=True)
    # real images first: those of most pixels
    cards.sort(key=lambda card: (not card.rows, -math.prod(card.track.data.shape), -card.studies, card.track.name))
    if documentation:
        site = Site(folder / "docs")
        for path in (path for path in sorted(DOCS.rglob("*")) if path.is_file()):
            site.copy(str(path.relative_to(DOCS)), path)
        site.close()
        written += site.written
    page = ENVIRONMENT.get_template("front.html")
    shared: dict[str, str | bytes] = {
        "index.html": page.render(
            root="", cards=cards, address=address, about=about, picture=bool(charts), citation=bibtex_of_benchmark()
        ),
        "feed.xml": feed(published, address),
        "static/style.css": (build.STATIC / "style.css").read_text(),
        "static/front.css": (build.STATIC / "front.css").read_text(),
    }
    if address:
        shared["sitemap.xml"] = _sitemap(pages, address)
        shared |= {"og.png": vega.picture(charts[0])} if charts else {}
    for place in {"sitemap.xml", "og.png"} - shared.keys():  # of a time when it had an address
        (folder / place).unlink(missing_ok=True)
    for place, content in shared.items():
        target, data = folder / place, content.encode() if isinstance(content, str) else content
        if not target.is_file() or target.read_bytes() != data:
            files.write(target, data)
            written += 1
    return written


def _real(tracks: Sequence[Track]) -> dict[str, list[tuple[str, str]]]:
    """By submission the tracks of papers' data on which something of it is published."""
    found: dict[str, list[tuple[str, str]]] = {}
    for track in tracks:
        if of_no_paper(track):
            continue
        kept = build.PUBLISHED / track.name
        published = [*kept.glob("*-*.json"), *kept.glob("studies/*-*.json")]
        for submission in sorted({path.stem.partition("-")[0] for path in published}):
            found.setdefault(submission, []).append((track.name, track.title))
    return found


def _board(track: Track, changed: str, about: About) -> tuple[Board, Card]:
    """The board of the rows that are built or published, and its card."""
    work, kept = build.WORK / track.name, build.PUBLISHED / track.name
    names = Path("pipelines") / track.name / "_all" / "rows.json"
    names = names if names.exists() else Path("pipelines") / track.name / "rows.json"
    wanted = files.read_json(names) if names.exists() else []
    places = {row: work / row / "record" for row in wanted if (work / row / "record/record.json").exists()}
    studies = study_table.read(kept / "studies")
    every = {path.stem: path for path in sorted(kept.glob("*-*.json"))}
    every |= {row: place / "record.json" for row, place in places.items()}
    rows, images = _ranked(track, [read_record(path) for path in every.values()], studies)
    claimed = read_claimed(Path("leaderboard/claimed") / track.name)
    papers = work / "inputs/papers.json"
    declared = read_papers(papers) if papers.exists() else {}
    board = Board(
        track, rows, work, studies, claimed, reproduced.read(kept), front="../index.html", images=images,
        papers=declared, published=kept, about=about,
    )  # fmt: skip
    return board, Card(track, rows, len(studies), changed)


def _ranked(
    track: Track, records: list[Record], studies: Sequence[PublishedStudy]
) -> tuple[list[Row], dict[str, Scores]]:
    """The rows in order, and their numbers by image."""
    images = {}
    for record in records:
        own = build.WORK / track.name / record.row / "record/per_image.json"
        kept = build.PUBLISHED / track.name / "images" / f"{record.row}.json"
        if own.exists() or kept.exists():
            images[record.row] = read_images(
                own if own.exists() else kept, "bring it back with git, or run `rvb repro`"
            )
    lowered, scores, brought = lowered_all(build.PUBLISHED / track.name / FOLDER, records, images)
    return rank(lowered, track, scores, studies, brought), scores


def _sitemap(pages: Sequence[str], address: str) -> str:
    places = "".join(f"<url><loc>{address}{page}</loc></url>\n" for page in pages)
    head = '<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n'
    return f"{head}{places}</urlset>\n"


def main(arguments: Sequence[str]) -> None:
    reader = argparse.ArgumentParser(
        prog="python -m leaderboard.front", description="Render the whole site in work/site."
    )
    reader.add_argument("--address", default="", help="where it will be, such as https://example.org/bench/")
    reader.add_argument("--repository", default="", help="where its source is, such as https://example.org/me/bench")
    given = reader.parse_args(arguments)
    address = given.address if not given.address or given.address.endswith("/") else f"{given.address}/"
    written = render(SITE, address, given.repository)
    print(f"{written} files written: open {SITE / 'index.html'}")


if __name__ == "__main__":
    errors.run(lambda: main(sys.argv[1:]))
