"""Pages of papers: what is claimed beside what came out, what was not run, and texts that are no markup."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from published_study import published
from site_rows import Page
from tiny_record import proportion, record

from benchmark.records.finding import Finding
from benchmark.records.record import Record
from benchmark.records.study import DeclaredPaper
from benchmark.specs import tracks
from benchmark.specs.study import Study
from leaderboard.pages import papers
from leaderboard.pages.board_data import About, Board
from leaderboard.rank import rank
from leaderboard.site import Site

TRACK = tracks.load("digits")
CLAIMS = [
    {"track": "digits", "variant": "v", "metric": "clean", "value": 0.9, "source": "Table 8"},
    {"track": "digits", "metric": "clean", "value": 0.5, "source": "Table 9"},
    {"track": "imagenet", "metric": "clean", "value": 0.7234, "source": "Table 6 & 7"},
]
VALUES = {"a": [0.50, 0.56, 0.53], "b": [0.5, 0.51, 0.52]}
PRINTED = {"a": {"clean": 0.5}, "b": {"clean": 0.9}}


def study(name: str, source: str, **more) -> dict:
    asked = {"title": f"The {name}", "source": source, "track": "digits", "variant": "v"}
    return {name: {**asked, "measures": [{"measure": "clean"}], **more}}


def declared(**more) -> DeclaredPaper:
    content = {
        "summary": "S.", "paper": {"title": "P <i>", "authors": "A & B", "year": 2024, "url": "https://example.org/p"},
        "claims": CLAIMS, "extensions": ["v"],
        "studies": {
            **study("grid", "Table 9", cells=[{"name": "a"}, {"name": "b"}, {"name": "never <run>"}]),
            **study("table10", "Table 10", claims={"all": {"clean": 0.123}}, note="Smaller, as `x <`."), **study("table2", "Table 2"),
            **study("v-seeds", "seeds 0 to 4"), **study("mixers", "this project's"),
        },
    }  # fmt: skip
    return DeclaredPaper.model_validate(content | more)


def pages(tmp_path: Path, board: Board) -> Path:
    site = Site(tmp_path / "site")
    papers.write_pages(site, board)
    site.close()
    return tmp_path / "site" / "papers"


def board(**more) -> Board:
    pgd = {"attack": "pgd", "norm": "Linf", "eps": 0.15, "parameters": {"steps": 20}}
    attack = {"id": "pgd-Linf-0.15", "suite": "papers", "spec": pgd, "accuracy": proportion(45), "remaining": {}}
    sub = Record.model_validate(record("Sub", 40, 30, certified=20).model_dump() | {"attacks": [attack]})
    rows = rank([sub, record("Other", 50, 10)], TRACK)
    finding = Finding(statement="It <helps>", statistic="d", over="3 seeds", estimate=1, low=0.5, high=1.5)
    made = published(VALUES, claims=PRINTED).model_copy(update={"findings": (finding,)})
    content = {"studies": [made], "papers": {"Sub": declared(), "Idle": declared()}}
    return Board(TRACK, rows, Path("nowhere"), **content | more)


def text_of(cell: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", cell)).split())


def lines(page: str, label: str) -> list[list[str]]:
    """The cells of the table in the region of that name."""
    table = page.partition(f'aria-label="{html.escape(label)}"')[2].partition("</table>")[0]
    return [
        [text_of(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S)]
        for row in re.findall(r"<tr.*?</tr>", table, re.S)
    ]


def test_claimed_and_rebuilt_stand_side_by_side(tmp_path) -> None:
    page = (pages(tmp_path, board()) / "Sub/index.html").read_text()
    printed = lines(page, "A <study>: claimed and rebuilt")
    assert printed[0] == ["setting", "clean, %"]
    assert printed[2] == ["a", "50.0", "53.0 50.0–56.0", "+3.0 -4.5 to +10.5 ≈ within the seeds"]
    assert printed[3][:3] == ["b", "90.0", "51.0 50.0–52.0"]
    assert printed[3][3].endswith("▼ rebuilt below")
    assert "Not reproduced since it was published." in page
    assert lines(page, "A <study>: statements")[1][:2] == ["It <helps>", "holds"]
    section = page.partition('id="study-grid"')[2].partition("</section>")[0]
    assert "rvb study Sub grid" in section
    assert "never &lt;run&gt;" in section.partition("Not run:")[2].partition("</p>")[0]


def test_numbers_of_other_data_have_no_difference_and_lead_to_the_papers_own(tmp_path) -> None:
    about = About("1", documentation=True, tracks={"Sub": [("digits", "Digits"), ("cifar10_jpeg", "Photographs")]})
    elsewhere = declared(claims=[{**CLAIMS[0], "track": "cifar10"}, CLAIMS[-1]])
    folder = pages(tmp_path, board(about=about, papers={"Sub": elsewhere}))
    page = (folder / "Sub/index.html").read_text()
    printed = lines(page, "A <study>: claimed and rebuilt")
    assert printed[2] == ["a", "50.0", "53.0 50.0–56.0", "≠ other data"]
    assert '<a href="../../../cifar10_jpeg/papers/Sub/index.html">Photographs</a>' in page
    assert '<a href="../../../docs/papers/Sub.html">What differs from the paper' in page
    assert "/digits/" not in page
    assert "3 printed numbers are recorded here, of the tables and figures that are reproduced on <em>" in page
    assert lines(page, "tables and figures")[0] == ["table or figure", "state", "printed", "statements tested"]
    assert "rebuilt below" not in page + (folder / "index.html").read_text()


@pytest.mark.parametrize("variant", ["v", "other"])
def test_text_and_claims_are_those_declared_now_where_the_settings_are_those_that_were_run(tmp_path, variant) -> None:
    made = published(VALUES, note="Then.")
    now = made.study.model_copy(
        update={"note": "Now.", "variant": variant, "claims": PRINTED, "claims_comparable": ("clean",)}
    )
    page = pages(tmp_path, board(studies=[made], papers={"Sub": declared(studies={"grid": now})})) / "Sub/index.html"
    assert ("Now." in page.read_text()) == ("claimed and rebuilt" in page.read_text()) == (variant == "v")


def test_the_summary_counts_every_printed_number(tmp_path) -> None:
    folder = pages(tmp_path, board())
    page = (folder / "Sub/index.html").read_text()
    summary = page.partition('id="claims"')[2].partition("<h2")[0]
    assert "3 printed numbers" in text_of(summary)
    counts = [text_of(item) for item in re.findall(r"<li[^>]*>(.*?)</li>", summary)]
    assert counts == ["1 ≈ within the seeds", "1 ▼ rebuilt below", "1 – not run"]
    contents = lines(page, "tables and figures")[1:]
    assert contents.pop()[:1] == ["The mixers this project's"]
    assert [line[0] for line in contents] == ["Table 2 The table2", "Table 9 A <study>", "Table 10 The table10"]
    assert [line[1].partition(" ")[0] for line in contents] == ["not", "run", "not"]
    assert contents[1][2:] == ["2", "1", "0", "1", "1 hold, 0 opposite, 0 not shown"]
    index = (folder / "index.html").read_text()
    row = index.partition('href="Sub/index.html"')[2].partition("</tr>")[0]
    cells = dict(re.findall(r'data-of="([^"]+)">(.*?)</td>', row))
    assert cells == {
        "year": "2024", "rows": "1", "tables and figures run": "1 of 4", "numbers printed": "3", "within": "1",
        "above": "0", "below": "1", "not run": "1",
    }  # fmt: skip
    assert "<code>Idle</code>" in index.partition("Declared, nothing run yet")[2]
    assert "Idle/index.html" not in index


def test_what_was_not_run_is_shown_with_what_the_paper_prints(tmp_path) -> None:
    page = (pages(tmp_path, board()) / "Sub/index.html").read_text()
    section = page.partition('id="study-table10"')[2].partition("</section>")[0]
    assert "Not run here." in section
    assert "1 setting, 3 seeds each, are declared" in text_of(section)
    assert lines(section, "The table10: claimed and rebuilt")[2] == ["all", "12.3", "– not run"]
    assert "Smaller, as <code>x &lt;</code>." in section
    seeds = page.partition('id="seeds"')[2].partition("<h2")[0]
    assert "Not run: Sub-v . It is one training" in text_of(seeds)
    assert 'id="study-v-seeds"' not in page, "of rows' seeds a line says it"


def test_rows_and_claims_of_other_data(tmp_path) -> None:
    page = (pages(tmp_path, board()) / "Sub/index.html").read_text()
    head, row = lines(page, "rows of the paper")
    assert head[:6] == ["rank", "model", "clean", "robust Linf 0.15", "robust L2 0.5", "robust L2 1"]
    assert (row[1], row[2][:4], row[3][:4], row[-1]) == ("A model Sub-v, not in the paper", "97.0", "40.0", "rebuilt")
    alone = lines(page, "accuracy under each attack of papers")
    assert alone == [["model", "PGD Linf 0.15, 20 steps"], ["A model Sub-v", "45.0 35.0–55.0"]]
    assert "<code>submissions/Sub/README.md</code>" in page
    assert 'href="../../models/Sub-v/index.html"' in page
    assert lines(page, "claims for this track")[1] == ["clean v", "Table 8", "90.0", "v : 97.0 (87.0–100.0)"]
    assert lines(page, "claims of other tracks")[1] == ["imagenet", "clean", "72.34", "Table 6 & 7"]
    assert "not comparable" in page
    other = (pages(tmp_path, board()) / "Other/index.html").read_text()
    assert "<bdi>P</bdi>" in other, "without a declaration the Record says which paper it is"
    assert "Tables and figures" not in other


def test_a_study_without_a_row_or_a_declaration_has_a_page(tmp_path) -> None:
    folder = pages(tmp_path, Board(TRACK, [], Path("nowhere"), studies=[published(VALUES, claims=PRINTED)]))
    page = (folder / "Sub/index.html").read_text()
    assert "<h1><bdi>Sub</bdi></h1>" in page
    assert "are not ranked" in page
    assert "Sub/index.html" in (folder / "index.html").read_text()
    assert "No paper has a row" in (pages(tmp_path, Board(TRACK, [], Path("nowhere"))) / "index.html").read_text()


@pytest.mark.parametrize("url", ["javascript:alert(1)", "data:text/html,x", "https://"])
def test_texts_of_submissions_are_no_markup(tmp_path, url: str) -> None:
    hostile = '</script><script>alert(1)</script><img src=x onerror="alert(1)">\u202e' + "x" * 10_000
    content = record("Sub", 40, 30, title=hostile).model_dump()
    content |= {"summary": hostile, "paper": {"title": hostile, "authors": hostile, "year": 2026, "url": ""}}
    content["claims"] = [{"track": hostile, "metric": hostile, "value": 0.5, "source": hostile}]
    made = Record.model_validate(content)
    paper = made.paper.model_copy(update={"url": url})  # past its own check
    measured = published(VALUES, claims=PRINTED, note=hostile, title=hostile, source=hostile)
    asked = {"later": Study.model_validate(study("later", hostile, note=hostile, title=hostile)["later"])}
    idle = declared().model_copy(update={"paper": paper, "studies": asked, "summary": hostile})
    rows = rank([made.model_copy(update={"paper": paper})], TRACK)
    for declared_papers in ({}, {"Sub": idle, "Idle": idle}):
        folder = pages(tmp_path, Board(TRACK, rows, Path("nowhere"), studies=[measured], papers=declared_papers))
        for path in folder.rglob("*.html"):
            text = path.read_text()
            assert "<script>alert" not in text
            assert "<img" not in text
            assert not re.search(r'href="(javascript|data:text|https://)', text)


def test_a_page_is_whole_and_its_own_links_lead_somewhere(tmp_path) -> None:
    page = Page(pages(tmp_path, board()) / "Sub/index.html")
    assert {link[1:] for link in page.values("href") if link.startswith("#")} <= page.ids
