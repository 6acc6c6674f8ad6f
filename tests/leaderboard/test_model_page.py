"""A model's page answers its reader's questions in order, from the Record and the evidence alone."""

from __future__ import annotations

import html
import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pyarrow.csv
import pytest
from model_site import TRACK, evidence, page, row
from tiny_record import proportion

from benchmark.results.brought import BrokenImage, Brought
from benchmark.results.study_table import Spread
from benchmark.specs.submission import Paper
from leaderboard.citation import bibtex
from leaderboard.image_radii import image_radii
from leaderboard.pages.model_evidence import LINES, WHOLE, evidence_csv
from leaderboard.rank import columns, rank
from leaderboard.record_claims import compare, same_number
from leaderboard.verdict import verdict

QUESTIONS = ("good", "claims", "believe", "show", "made", "repeat")
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u202e{{7*7}} " + "x" * 10000


class Checker(HTMLParser):
    """Unclosed or crossing elements, doubled ids, and what a page would run."""

    VOID = frozenset(("meta", "link", "img", "br", "input", "line", "circle", "path", "rect", "polyline"))

    def __init__(self) -> None:
        super().__init__()
        self.open, self.ids, self.wrong, self.tags = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        self.wrong += [name for name, _ in attrs if name.startswith("on")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}> at {self.getpos()}")


def checked(text: str) -> Checker:
    found = Checker()
    found.feed(text)
    assert not found.wrong
    assert not found.open
    assert len(found.ids) == len({*found.ids})
    return found


@pytest.fixture(scope="module")
def shown(tmp_path_factory) -> Path:
    """The folder of a row's page."""
    return page(row(), tmp_path_factory.mktemp("shown"))


def test_the_page_is_in_the_order_of_a_readers_questions(shown) -> None:
    text = (shown / "index.html").read_text()
    places = [text.index(f'<h2 id="{name}">') for name in QUESTIONS]
    assert places == sorted(places)
    assert [re.search(rf'<li><a href="#{name}">', text) is not None for name in QUESTIONS] == [True] * 6
    found = checked(text)
    levels = [int(tag[1]) for tag, _ in found.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels)), "no level of headings is left out"
    large = re.findall(r"<dd><b>([0-9.]+)%</b>", text.partition('<dl class="three">')[2].partition("</dl>")[0])
    assert large == ["97.0", "40.0"], "a number at a radius that the row lacks is a dash"
    assert "AutoAttack Linf 0.15" in text
    assert "(40 of 100 images)" in text


def test_a_page_says_what_attention_does_where_there_is_any(tmp_path, shown) -> None:
    parts = {"uniform": {"clean": proportion(95), "changed": 3}, "none": {"clean": proportion(11), "changed": 88}}
    text = " ".join((page(row(attention=parts), tmp_path) / "index.html").read_text().split())
    assert "right on 95.0% of the clean images (as it is: 97.0%) and predicts another class for 3 of 100" in text
    assert "with nothing in its place on 11.0%, another class for 88." in text
    assert 'id="attention"' not in (shown / "index.html").read_text()


def test_files_lie_beside_the_page_and_the_charts_numbers_in_it(shown) -> None:
    text = (shown / "index.html").read_text()
    for name in ("record.json", "evidence.parquet", "evidence.csv", "paper.bib", "sandwich.csv", "radii.csv"):
        assert (shown / name).exists()
        assert f'href="{name}"' in text
    specs = [json.loads(one) for one in re.findall(r'<script type="application/json">(.*?)</script>', text, re.S)]
    assert len(specs) == 2
    table = pyarrow.csv.read_csv(shown / "sandwich.csv").to_pylist()
    for drawn, line in zip(specs[0]["lines"], table, strict=True):
        assert dict(zip(specs[0]["heads"], drawn, strict=True)) == pytest.approx(line)
    assert pyarrow.csv.read_csv(shown / "evidence.csv").num_rows == 60


def test_a_page_shows_each_image_and_what_is_known_of_it(shown) -> None:
    text = (shown / "index.html").read_text()
    found = image_radii(evidence(row(), 60))
    cells = re.findall(r"<td><b>([a-z ]+)</b>", text.partition('<tr class="states">')[2].partition("</tr>")[0])
    radius = 0.25
    for i, word in enumerate(cells):
        certified = found.certified is not None and found.certified[i] >= radius
        broken = found.broken[i] <= radius
        known = "broken" if broken else "certified" if certified else "between"
        assert word == (known if found.right[i] else "wrong when clean")
    assert len(cells) == 10
    assert "mid-grey: none" in text
    assert "data:image/png;base64," in text


def test_of_many_images_page_and_csv_have_the_first_and_the_page_says_so(tmp_path) -> None:
    seen = evidence(row(), WHOLE + 1)
    written = pyarrow.csv.read_csv(evidence_csv(seen))
    assert written.num_rows == WHOLE
    assert written.column_names == seen.column_names
    text = (page(row(), tmp_path, n=WHOLE + 1) / "index.html").read_text()
    assert "the first 2,000 of 2,001 images" in text
    assert 'All 2,001 stand in <a href="evidence.parquet"' in text
    table = text.partition('<table class="evidence">')[2].partition("</table>")[0]
    assert table.count("<tr>") == LINES + 1
    assert f"the first {LINES} of 2001" in text or f"the first {LINES} of 2,001" in text


def claimed(metric: str, value: float, track: str = "digits") -> dict:
    return {"track": track, "metric": metric, "value": value, "source": "Table 1"}


def test_claims_are_compared_cell_by_cell_and_only_where_both_are_of_one_thing() -> None:
    claims = [
        claimed("clean", 0.95), claimed("AutoAttack Linf 0.15", 0.9), claimed("clean", 0.9, "cifar10"),
        claimed("certified L2 0.1 (normalised)", 0.5), claimed("certified L2 0.1", 0.2), claimed("robust L2 0.75", 0.2),
    ]  # fmt: skip
    (made,) = rank([row(claims=claims)], TRACK)
    found = compare(made, columns(TRACK))
    assert [one.measured and one.measured.count for one in found] == [97, 40, None, None, 20, None]
    assert [one.difference and round(one.difference, 6) for one in found] == [0.02, -0.5, None, None, 0.0, None]
    assert found[0].why == "no difference is shown: the interval holds the claim"
    assert "trained again here" in found[1].why
    assert found[2].why == "not comparable: claimed on cifar10; this row is trained and judged on digits"
    assert all(one.why.startswith("not comparable: ") for one in found[3:4])
    assert "no number of this name and radius" in found[5].why
    (bare,) = rank([row(certified=False, claims=claims[4:5])], TRACK)
    assert compare(bare, columns(TRACK))[0].why == "not comparable: this row certifies nothing here"
    seeds = tuple(Spread((0.3, 0.95)) if name == "robust Linf 0.15" else None for name in columns(TRACK))
    other = made.__class__(made.best, made.worst, made.record, made.cells, seeds, None)
    assert "within the range of 2 trainings" in compare(other, columns(TRACK))[1].why


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        ("clean", "clean"), ("AutoAttack Linf 8/255", "robust Linf 0.0313725"), ("robust Linf 0.031373", "robust Linf 0.0313725"),
        ("robust L2 0.5", "robust L2 0.5"), ("AutoAttack L2 8/0", None), ("robust Linf 0.04", None), ("robust", None),
        ("clean L2 1", None), ("PGD Linf 8/255", None), ("robust L2 .", None), ("robust L2 0.5 (normalised)", None),
    ],
)  # fmt: skip
def test_metrics_are_the_same_number_only_where_they_say_no_more(metric: str, name: str | None) -> None:
    assert same_number(metric, ["clean", "robust Linf 0.0313725", "robust L2 0.5"]) == name


def test_a_page_with_nothing_to_compare_says_so(tmp_path, shown) -> None:
    assert "so there is nothing to compare" in (shown / "index.html").read_text()
    text = (page(row(claims=[claimed("clean", 0.9, "cifar10")]), tmp_path) / "index.html").read_text()
    assert "The one claimed number recorded is not of what is measured here" in text


def test_the_verdict_is_one_line_and_doubts_are_said_in_words() -> None:
    signals = [{"name": f"sign {i}", "measured": f"m{i}", "sound": i > 0, "explanation": f"e{i}."} for i in range(3)]
    threat = {"norm": "Linf", "eps": 0.15}
    sound = row(reliability={"threat": threat, "signals": signals[1:]})
    assert verdict(sound).line == (
        "No sign against the attacks (2 looked at); certificate audited and held; rebuilt here from scratch; replayable; "
        "one training."
    )
    assert verdict(sound).doubts == ()
    doubted = row(certified=False, wall="none", sha256={}, reliability={"threat": threat, "signals": signals})
    found = verdict(doubted, trainings=5)
    assert found.line.startswith("1 of 3 signs speaks against the attacks; no certificate; ")
    assert "its adversarial images are not kept; trained with 5 seeds" in found.line
    assert found.doubts[0] == ("sign 0", "e0. Measured: m0.")
    assert [name for name, _ in found.doubts] == ["sign 0", "no wall"]
    image = BrokenImage(image=3, threat="L2 0.5", linf=0, l2=0.1, prediction=1, margin=-1, lost=(), certified=0.2)
    brought = Brought(credit="Jane", sha256="a" * 64, weights="b" * 64, images=(image,))
    found = verdict(sound, [brought])
    assert "certificate contradicted" in found.line
    assert found.doubts[0][0] == "image 3 contradicts the certificate"


@pytest.mark.parametrize(
    ("title", "shown"),
    [
        ("A & B_C: 100% #1 $x$", r"A \& B\_C: 100\% \#1 \$x\$"),
        ("{Paired} braces", r"\{Paired\} braces"),
        ("Open { brace }}", "Open brace"),
        ("back\\slash ~ ^", r"back\textbackslash{}slash \textasciitilde{} \textasciicircum{}"),
        ('quoted "word"\nand\u202eline', "quoted ''word'' and line"),
    ],
)
def test_bibtex_holds_whatever_a_title_holds(title: str, shown: str) -> None:
    entry = bibtex(
        "Havens2024LoFAST", Paper(title=title, authors="Havens, Araujo and Hu", year=2024, url="https://a.b/c_{d}")
    )
    assert f"title = {{{{{shown}}}}}," in entry
    assert "author = {Havens and Araujo and Hu}," in entry
    assert "url = {https://a.b/c_%7Bd%7D}" in entry
    assert entry.startswith("@misc{Havens2024LoFAST,\n")
    depth = 0
    for character in entry:
        depth += (character == "{") - (character == "}")
        assert depth >= 0
    assert depth == 0, "BibTeX counts braces even behind a backslash"


@pytest.mark.parametrize(
    ("authors", "shown"),
    [("Croce et al.", "Croce and others"), ("Gupta and Verma", "Gupta and Verma"), ("Sander, M.\\", "Sander and M.\\textbackslash{}"), ("", "unknown")],
)  # fmt: skip
def test_bibtex_lists_authors(authors: str, shown: str) -> None:
    assert f"author = {{{shown}}}" in bibtex("a{,b", Paper(title="T", authors=authors, year=2024))
    assert bibtex("a{,b", Paper(title="T", authors=authors, year=2024)).startswith("@misc{ab,")


def test_hostile_texts_are_data(tmp_path) -> None:
    paper = {"title": HOSTILE, "authors": HOSTILE, "year": 2026, "url": ""}
    claims = [{"track": HOSTILE, "metric": HOSTILE, "value": 0.5, "source": HOSTILE}]
    signals = [{"name": HOSTILE, "measured": HOSTILE, "sound": False, "explanation": HOSTILE}]
    made = row(
        title=HOSTILE, summary=HOSTILE, paper=paper, claims=claims, wall=HOSTILE, division_reasons=[HOSTILE],
        sha256={HOSTILE: HOSTILE}, environment={HOSTILE: HOSTILE}, measured={HOSTILE: HOSTILE},
        reliability={"threat": {"norm": "Linf", "eps": 0.15}, "signals": signals},
    )  # fmt: skip
    text = (page(made, tmp_path) / "index.html").read_text()
    checked(text)
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert html.escape("{{7*7}}") in text
    scripts = [attrs for tag, attrs in checked(text).tags if tag == "script"]
    assert all(attrs.get("type") == "application/json" or attrs["src"].startswith("../../") for attrs in scripts)


def test_a_table_of_claims_says_measured_difference_and_interval(tmp_path) -> None:
    text = (page(row(claims=[claimed("clean", 0.9)], clean=proportion(97)), tmp_path) / "index.html").read_text()
    table = text.partition('<table class="claims stacked">')[2].partition("</table>")[0]
    assert re.findall(r'data-of="[a-z ]+">(?:<b>)?([-+0-9.]+)', table) == ["90.0", "97.0", "+7.0"]
    assert "-3.0 to +10.0" in table
