"""The whole site in work/site, a front page and each track's board: `python -m leaderboard.front`.

Rows built in work/ are shown with their evidence, published ones with what git keeps: Record, verdicts by image, weights.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from benchmark.records import reproduced
from benchmark.records.accuracy import Proportion
from benchmark.records.record import headline
from benchmark.records.study import read_published
from benchmark.runtime import errors, files
from benchmark.specs.track import Track
from leaderboard import build
from leaderboard.changes import changes, commit_here, feed, last_change
from leaderboard.charts import vega
from leaderboard.charts.overview import overview
from leaderboard.citation import bibtex_of_benchmark, version
from leaderboard.pages.board_data import ENVIRONMENT, About, Board
from leaderboard.rank import Row, headline_columns, ranking_name
from leaderboard.reading import published_places, read_claimed, read_papers, read_rows, read_track
from leaderboard.site import Site
from leaderboard.times import write_times

SITE = Path("work/site")
DOCS = Path("build/docs")  # where mkdocs writes; the site takes it along where it is
BEST = 3  # rows of a card


@dataclass(frozen=True)
class Card:
    """A track on the front page.

    Attributes:
        rows: the published and the built ones.
        papers: submissions that have a page.
        changed: the day on which a row was last published; "" where unknown.
    """

    track: Track
    rows: Sequence[Row]
    studies: int
    papers: Sequence[str]
    changed: str

    @property
    def pages(self) -> bool:
        return bool(self.rows or self.studies)

    @property
    def bests(self) -> list[tuple[str, list[tuple[Row, Proportion]]]]:
        """Return the number that ranks and the first certified number of the board, each with the best rows by it."""
        names = [ranking_name(self.track), *(n for n in headline_columns(self.track) if n.startswith("certified"))]
        bests = []
        for name in names:
            numbers = [(row, headline(row.record)[name]) for row in self.rows if name in headline(row.record)]
            best = sorted(numbers, key=lambda pair: (-pair[1].value, pair[0].record.row))[:BEST]
            bests += [(name, best)] * bool(best)
        return bests

    def tied(self, row: Row, name: str) -> list[str]:
        """Return the titles of the rows that the tests do not tell from `row` by the number `name`."""
        tied = {other for tie in row.standings[name].ties for other in tie.rows}
        return [other.record.title for other in self.rows if other.record.row in tied]


def render(folder: Path, address: str, repository: str = "") -> int:
    """Write the site; return how many files changed.

    Args:
        address: where the site will be, ending in "/", for feed and site map; "" for one that is read from files.
        repository: the address of the source, which each page then links.
    """
    published = changes(build.PUBLISHED)
    documentation = (DOCS / "index.html").exists()
    tracks = [read_track(path.stem) for path in sorted(Path("benchmark/tracks").glob("*.yaml"))]
    about = About(version(), *commit_here(), repository, documentation, _tracks_of(tracks), address)
    written, cards, pages, charts, charted = 0, [], ["index.html"], list[vega.Chart](), ""
    for track in tracks:
        board = _board(track, about)
        owners = {row.record.submission for row in board.rows} | {study.result.submission for study in board.studies}
        card = Card(track, board.rows, len(board.studies), sorted(owners), last_change(published, track.name))
        cards.append(card)
        if card.pages:
            print(f"{track.name}: {len(board.rows)} rows, {card.studies} studies", file=sys.stderr, flush=True)
            site = build.render(folder / track.name, board)
            write_times(folder / track.name, board.folder, list(board.rows), board.published)
            written += site.written
            pages += [f"{track.name}/{page}" for page in site.pages]
            if not charts:
                charts, charted = overview(board.rows, track), f"robust-vit-bench: {track.title}"
        else:
            shutil.rmtree(folder / track.name, ignore_errors=True)
    # real images first: those of most pixels
    cards.sort(key=lambda card: (not card.rows, -math.prod(card.track.data.shape), -card.studies, card.track.name))
    if documentation:
        site = Site(folder / "docs", address and f"{address}docs/")
        for path in (path for path in sorted(DOCS.rglob("*")) if path.is_file()):
            if path != DOCS / "404.html":  # its addresses begin with a slash, and no server shows it from a subfolder
                content = path.read_text() if path.suffix == ".html" else path.read_bytes()
                site.write(str(path.relative_to(DOCS)), content)
        site.close()
        written += site.written
    shared, page = Site(folder, address), ENVIRONMENT.get_template("front.html")
    text = page.render(
        root="", cards=cards, address=address, about=about, picture=bool(charts), citation=bibtex_of_benchmark()
    )
    shared.write("index.html", text)
    about_changes = ENVIRONMENT.get_template("changes.html")
    titles = {card.track.name: card.track.title for card in cards}
    shared.write("feed.xml", feed(published, address, titles))
    there = {card.track.name: {row.record.row for row in card.rows} for card in cards}
    shared.write("changes.html", about_changes.render(root="", changes=published, about=about, titles=titles, there=there))
    licence = build.HERE.parent / "LICENSE"  # of a checkout; else the installed package's
    texts = (package.read_text("licenses/LICENSE") for package in metadata.distributions(name="robust-vit-bench"))
    shared.write("LICENSE.txt", licence.read_text() if licence.exists() else next(filter(None, texts)))
    for name in ("style.css", "front.css", "feed.css"):
        shared.copy(f"static/{name}", build.STATIC / name)
    if address:
        shared.write("sitemap.xml", _sitemap(pages, address))
    if address and charts:
        shared.write("og.png", vega.picture(charts[0], charted))
    for place in () if address else ("sitemap.xml", "og.png"):  # of a time when it had an address
        (folder / place).unlink(missing_ok=True)
    return written + shared.written


def _tracks_of(tracks: Sequence[Track]) -> dict[str, list[tuple[str, str]]]:
    """Return by submission the tracks on which it has a published row or study."""
    tracks_of: dict[str, list[tuple[str, str]]] = {}
    for track in tracks:
        kept = build.PUBLISHED / track.name
        published = [*kept.glob("*-*.json"), *kept.glob("studies/*-*.json")]
        for submission in sorted({path.stem.partition("-")[0] for path in published}):
            tracks_of.setdefault(submission, []).append((track.name, track.title))
    return tracks_of


def _board(track: Track, about: About) -> Board:
    """Return the board of the rows that are built or published."""
    work, kept = build.WORK / track.name, build.PUBLISHED / track.name
    names = Path("pipelines") / track.name / "_all" / "rows.json"
    names = names if names.exists() else names.parents[1] / "rows.json"
    places = published_places(kept)
    for row in files.read_model(names, list[str], "run `rvb pipeline`") if names.exists() else []:
        own = work / row / "record"
        if (own / "record.json").exists():
            images = own / "per_image.json"
            places[row] = own / "record.json", images if images.exists() else None
    studies = read_published(kept / "studies")
    again = "bring it back with git, or delete it and run `rvb repro`"
    rows, scores = read_rows(track, places.values(), kept, studies, again)
    claimed, papers = read_claimed(Path("leaderboard/claimed") / track.name), work / "inputs/papers.json"
    return Board(
        track, rows, work, studies, claimed, reproduced.read(kept), front="../index.html", images=scores,
        papers=read_papers(papers) if papers.exists() else {}, published=kept, about=about,
    )  # fmt: skip


def _sitemap(pages: Sequence[str], address: str) -> str:
    places = "".join(f"<url><loc>{address}{page.removesuffix('index.html')}</loc></url>\n" for page in pages)
    head = '<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n'
    return f"{head}{places}</urlset>\n"


def main(arguments: Sequence[str]) -> None:
    reader = argparse.ArgumentParser(prog="python -m leaderboard.front", description="Render the whole site in work/site.")
    reader.add_argument("--address", default="", help="where it will be, such as https://example.org/bench/")
    reader.add_argument("--repository", default="", help="where its source is, such as https://example.org/me/bench")
    given = reader.parse_args(arguments)
    address = given.address if not given.address or given.address.endswith("/") else f"{given.address}/"
    written = render(SITE, address, given.repository)
    print(f"{written} files written: open {SITE / 'index.html'}")


if __name__ == "__main__":
    errors.run(lambda: main(sys.argv[1:]))
