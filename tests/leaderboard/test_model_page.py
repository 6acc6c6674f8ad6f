"""A model's page answers its reader's questions in order, from the Record and the evidence alone."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import model_site
import pyarrow.csv
import pytest
import site_rows
from model_site import TRACK, evidence, row
from tiny_record import proportion, record

from benchmark.records.contributed import BrokenImage, Contribution
from benchmark.records.study_table import Spread
from benchmark.specs.submission import Paper
from leaderboard.citation import bibtex
from leaderboard.image_radii import image_radii
from leaderboard.pages.model_evidence import LINES, WHOLE, evidence_csv
from leaderboard.rank import columns, rank
from leaderboard.record_claims import compare
from leaderboard.verdict import verdict

QUESTIONS = ("good", "claims", "believe", "show", "made", "repeat")
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u202e{{7*7}} " + "x" * 10000
LINF = {"norm": "Linf", "eps": 0.15}
STEPS = ((0, 2.0, 0.9), (10, 0.5, 0.6), (100, -0.2, 0.5))


def signals(doubtful: int, count: int = 3) -> list[dict]:
    return [
        {"name": f"sign <{i}>", "measured": f"{i} & more", "sound": i >= doubtful, "explanation": f"why {i}"}
        for i in range(count)
    ]


def reliability(doubtful: int = 0) -> dict:
    return {
        "threat": LINF, "signals": signals(doubtful),
        "steps": [{"steps": steps, "margin": margin, "accuracy": accuracy} for steps, margin, accuracy in STEPS],
        "radii": [{"eps": eps, "accuracy": accuracy} for eps, accuracy in ((0.15, 0.5), (0.4, 0.1), (1.0, 0.0))],
        "gradients": {"images": 97, "zeros": 0, "quantiles": [(0.0, 0.5), (0.5, 1.5), (1.0, 4.0)]},
    }  # fmt: skip


def training(**more: object) -> dict:
    return {**row().training.model_dump(), **more}


def overfitting(*epochs: int) -> dict:
    probe = {"attack": "pgd", **LINF, "parameters": {"steps": 10, "step_size": 0.04}}
    return {
        "found": bool(epochs), "epochs": epochs, "trained": 0.9, "pgd": 0.1, "gap": 0.3, "images": 100, "probe": probe,
    }  # fmt: skip


def claimed(metric: str, value: float, track: str = "digits") -> dict:
    return {"track": track, "metric": metric, "value": value, "source": "Table 1"}


def paper(text: str, url: str = "") -> dict:
    return {"title": text, "authors": text, "year": 2026, "url": url}


UNSOUND = {"formula": "A & B 2023, as printed", "reached": {"0.1": 0.5, "0.25": 0.25, "0.5": 0.0}}
ATTENTION = {"uniform": {"clean": proportion(95), "changed": 3}, "none": {"clean": proportion(11), "changed": 88}}
OWN_RECIPE = {
    "objective": "scaled", "penalties": [{"name": "ridge"}, {"name": "msvp"}], "prepare": [{"name": "scaling"}],
    "epochs": 1, "batch_size": 2, "learning_rate": 0.1,
}  # fmt: skip
OWN = html.escape(" (the submission's own)").replace("&#x27;", "&#39;")
ROWS = [
    row("Shown"),
    row("Doubtful", reliability=reliability(2), training=training(overfitting=overfitting(7, 8))),
    row("Sound", reliability=reliability(), training=training(overfitting=overfitting(), processes=4)),
    row("Linked", paper=paper("P", "https://example.org/paper")),
    row("Attentive", attention=ATTENTION),
    row("Claimed", claims=[claimed("clean", 0.9)], clean=proportion(97)),
    row("Elsewhere", claims=[claimed("clean", 0.9, "cifar10")]),
    row("Many"),
    row(
        "Formula", measured={"unsound": {"certvit": UNSOUND}, "brightness": 0.5},
        training=training(prepared=[{"name": "scaling", "history": {}}], selected_epoch=0),
        settings={"training": OWN_RECIPE},
    ),
    row(
        "Hostile", title=HOSTILE, summary=HOSTILE, paper=paper(HOSTILE), wall=HOSTILE, division_reasons=[HOSTILE],
        claims=[{"track": HOSTILE, "metric": HOSTILE, "value": 0.5, "source": HOSTILE}],
        sha256={HOSTILE: HOSTILE}, environment={HOSTILE: HOSTILE}, measured={HOSTILE: HOSTILE},
        reliability={
            "threat": LINF, "signals": [{"name": HOSTILE, "measured": HOSTILE, "sound": False, "explanation": HOSTILE}],
        },
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A site of the ROWS, each with evidence of 60 images, Many with more than its files take."""
    folder = tmp_path_factory.mktemp("rendered")
    unchecked = ROWS[3].model_copy(update={"paper": ROWS[3].paper.model_copy(update={"url": "javascript:alert(1)"})})
    records = [*ROWS, unchecked.model_copy(update={"submission": "Script"})]  # a Record that came by another way
    for made in records:
        site_rows.put(made, folder, evidence(made, WHOLE + 1 if made.row == "Many-v" else 60))
    site_rows.render(folder / "site", TRACK, rank(records, TRACK), folder)
    return folder / "site"


def text_of(site: Path, name: str) -> str:
    return (site / f"models/{name}-v/index.html").read_text()


def between(text: str, begin: str, end: str) -> str:
    return text.partition(begin)[2].partition(end)[0]


def test_every_page_is_whole_and_what_submissions_say_is_data(site) -> None:
    for path in site.rglob("*.html"):
        text, page = path.read_text(), site_rows.Page(path)
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert not re.search(r'href="javascript', text)
        scripts = [made for tag, made in page.tags if tag == "script"]
        local = ("../", "static/", "times.js", "radii.js")
        assert all(made.get("type") == "application/json" or made["src"].startswith(local) for made in scripts)
    assert "x" * 1000 not in (site / "compare/index.html").read_text(), "the list of rows has short titles"


def test_no_smoothed_number_is_beyond_the_reach_of_the_noise(tmp_path, monkeypatch) -> None:
    smoothed = record("A", 40, 30, smoothed=50).smoothed.model_dump()
    far = [{**smoothed["certified"][0], "threat": {"norm": "L2", "eps": eps}} for eps in (0.1, 0.25, 0.5)]
    coarse = TRACK.smoothing.model_copy(update={"n": 40})  # reaches 0.17
    monkeypatch.setattr(model_site, "TRACK", TRACK.model_copy(update={"smoothing": coarse}))
    text = (model_site.page(row(smoothed={**smoothed, "certified": far}), tmp_path) / "index.html").read_text()
    assert "Smoothed version: 50.0% at L2 0.1</summary>" in text
    assert "smoothed version, certified L2 0.25" not in text


def test_the_page_is_in_the_order_of_a_readers_questions(site) -> None:
    text = text_of(site, "Shown")
    places = [text.index(f'<h2 id="{name}">') for name in QUESTIONS]
    assert places == sorted(places)
    assert [re.search(rf'<li><a href="#{name}">', text) is not None for name in QUESTIONS] == [True] * 6
    large = re.findall(r"<dd><b>([0-9.]+)%</b>", between(text, '<dl class="three">', "</dl>"))
    assert large == ["97.0", "40.0", "30.0"], "a number at a radius that the row lacks is a dash"
    assert re.findall(r"</b><small>(L[^<]+)</small>", text)[:2] == ["Linf 0.15", "L2 0.5"]


def test_the_board_marks_rows_whose_attacks_are_in_doubt(site) -> None:
    index = (site / "index.html").read_text()
    cells = {name: site_rows.board_row(index, f"{name}-v") for name in ("Doubtful", "Sound", "Shown")}
    assert "⚠ warnings: 2 of 3" in cells["Doubtful"]
    assert 'href="models/Doubtful-v/index.html#attacks-trusted"' in cells["Doubtful"]
    assert not re.search("warnings|not checked", cells["Sound"])
    assert ">attacks not checked</small>" in cells["Shown"]
    assert "<dt>warnings</dt>" in index
    assert "unsound" not in index


ROBUST = (
    "90.0% of 100 validation images were robust to the attack of the training, and 10.0% to PGD too (10 steps, Linf 0.15)"
)
SAYS: dict[str, tuple[list[str], list[str]]] = {  # by row what its page says, and what it does not
    "Doubtful": (
        [
            "⚠ Warning.", "why 0", "why 1", "in epochs 7, 8: PGD broke more than 30% of", ROBUST,
            "<strong>Catastrophic overfitting</strong>",
        ],
        ["why 2", "No warning."],
    ),
    "Sound": (
        [
            "No warning.", "sign &lt;0&gt;", "0.5 (least), 1.5 (50% lie below), 4 (greatest)", ROBUST,
            "No catastrophic overfitting found.", "(cpu, 32-true, 4 processes that share each batch);",
        ],
        ["why 0", "why 1", "why 2", "⚠ Warning."],
    ),
    "Shown": (
        ["Trained for 1 epochs with seed 0 (cpu, 32-true);", "so there is nothing to compare", "(40 of 100 images)"],
        [OWN, "Can the attacks be trusted?", "<svg", "verfitting", 'id="attention"'],
    ),
    "Formula": (
        [
            f"Before the first epoch scaling{OWN} changed them (these weights were selected, as epoch 0)",
            f"selected by validation accuracy{OWN} (", f"<td>scaled{OWN}</td>", f"ridge{OWN}", f"scaling{OWN}",
            "<dt>brightness</dt>",
        ],
        ["<dt>unsound</dt>", f"msvp{OWN}"],
    ),
    "Attentive": (
        [
            "With every attention replaced by uniform averaging, it classifies 95.0% correctly and predicts another class for 3 of 100",
            "With every attention removed, it classifies 11.0% correctly and predicts another class for 88.",
        ],
        [],
    ),
    "Elsewhere": (["No number of this page is comparable with the one number that the paper claims"], []),
    "Many": (
        ["the first 2,000 of 2,001 images", 'All 2,001 are in <a href="evidence.parquet"', f"the first {LINES} of 2001"], [],
    ),
    "Hostile": ([html.escape("{{7*7}}")], ["<script>alert", "<img src=x"]),
}  # fmt: skip


@pytest.mark.parametrize("name", SAYS)
def test_a_page_says_what_the_record_holds_and_no_more(site, name) -> None:
    text = " ".join(text_of(site, name).split())
    present, absent = SAYS[name]
    assert [words for words in present if words not in text] == []
    assert [words for words in absent if words in text] == []


def test_each_check_has_a_verdict_and_the_curves_are_drawn(site) -> None:
    doubtful, sound = (text_of(site, name) for name in ("Doubtful", "Sound"))
    assert (doubtful.count("⚠ warns"), sound.count("<td>passes</td>"), sound.count("<svg")) == (2, 3, 2)


def test_a_page_links_to_web_addresses_alone(site) -> None:
    heads = [between(text_of(site, name), "S. ", "Row <code>") for name in ("Linked", "Script")]
    assert ["<a " in head for head in heads] == [True, False]


def test_a_published_formula_stands_beside_the_certificate_and_says_that_it_certifies_nothing(site) -> None:
    table = between(text_of(site, "Formula"), "Published formulas that certify nothing", "</table>")
    assert "unsound: A &amp; B 2023, as printed" in table
    assert re.findall(r'<td class="number">([0-9.]+)', table)[-3:] == ["50.0", "25.0", "0.0"]


def test_files_lie_beside_the_page_and_the_charts_numbers_in_it(site) -> None:
    text, folder = text_of(site, "Shown"), site / "models/Shown-v"
    for name in ("record.json", "evidence.parquet", "evidence.csv", "paper.bib", "sandwich.csv", "radii.csv"):
        assert (folder / name).exists()
        assert f'href="{name}"' in text
    specs = [json.loads(item) for item in re.findall(r'<script type="application/json">(.*?)</script>', text, re.S)]
    assert len(specs) == 2
    table = pyarrow.csv.read_csv(folder / "sandwich.csv").to_pylist()
    for drawn, line in zip(specs[0]["lines"], table, strict=True):
        assert dict(zip(specs[0]["heads"], drawn, strict=True)) == pytest.approx(line)
    assert pyarrow.csv.read_csv(folder / "evidence.csv").num_rows == 60


def test_a_page_shows_each_image_and_what_is_known_of_it(site) -> None:
    text, result = text_of(site, "Shown"), image_radii(evidence(row(), 60))
    cells, radius = re.findall(r"<td><b>([a-z ]+)</b>", between(text, '<tr class="states">', "</tr>")), 0.25
    for i, word in enumerate(cells):
        certified = result.certified is not None and result.certified[i] >= radius
        status = "broken" if result.broken[i] <= radius else "certified" if certified else "between"
        assert word == (status if result.right[i] else "wrong when clean")
    assert len(cells) == 10
    assert "mid-grey: none" in text
    assert "data:image/png;base64," in text


def test_of_many_images_page_and_csv_have_the_first_and_the_page_says_so(site) -> None:
    seen = evidence(row(), WHOLE + 1)
    written = pyarrow.csv.read_csv(evidence_csv(seen))
    assert written.num_rows == WHOLE
    assert written.column_names == seen.column_names
    assert between(text_of(site, "Many"), '<table class="evidence">', "</table>").count("<tr>") == LINES + 1


def test_a_table_of_claims_says_measured_difference_and_interval(site) -> None:
    table = between(text_of(site, "Claimed"), '<table class="claims stacked">', "</table>")
    assert re.findall(r'data-of="[a-z ]+">(?:<b>)?([-+0-9.]+)', table) == ["90.0", "97.0", "+7.0"]
    assert "-3.0 to +10.0" in table


def test_claims_are_compared_cell_by_cell_and_only_where_both_are_of_one_thing() -> None:
    claims = [
        claimed("clean", 0.95), claimed("AutoAttack Linf 0.15", 0.9), claimed("clean", 0.9, "cifar10"),
        claimed("certified L2 0.1 (normalised)", 0.5), claimed("certified L2 0.1", 0.2), claimed("robust L2 0.75", 0.2),
    ]  # fmt: skip
    (made,) = rank([row(claims=claims)], TRACK)
    result = compare(made, columns(TRACK))
    assert [item.measured and item.measured.count for item in result] == [97, 40, None, None, 20, None]
    assert [item.difference and round(item.difference, 6) for item in result] == [0.02, -0.5, None, None, 0.0, None]
    assert result[0].why == "the claim lies within the interval: no difference is shown"
    assert "trained again here" in result[1].why
    assert result[2].why == "other data: cifar10"
    assert "no number of this name and radius" in result[3].why
    assert "no number of this name and radius" in result[5].why
    (bare,) = rank([row(certified=False, claims=claims[4:5])], TRACK)
    assert compare(bare, columns(TRACK))[0].why == "this row certifies nothing here"
    seeds = tuple(Spread((0.3, 0.95)) if name == "robust Linf 0.15" else None for name in columns(TRACK))
    other = made.__class__(made.best, made.worst, made.record, made.cells, seeds, None)
    assert "within the range of 2 trainings" in compare(other, columns(TRACK))[1].why


def test_the_verdict_is_one_line_and_warnings_are_said_in_words() -> None:
    sound = row(reliability={"threat": LINF, "signals": signals(0, 2)})
    assert verdict(sound).line == (
        "None of 2 checks warns that the attacks may have failed; certificate audited; rebuilt here from scratch; replayable; "
        "one training."
    )
    assert verdict(sound).warnings == ()
    doubted = row(certified=False, wall="none", sha256={}, reliability={"threat": LINF, "signals": signals(1)})
    result = verdict(doubted, trainings=5)
    assert result.line.startswith("1 of 3 checks warns that the attacks may have failed; no certificate; ")
    assert "adversarial images not kept; trained with 5 seeds" in result.line
    assert result.warnings[0] == ("sign <0>", "why 0 Measured: 0 & more.")
    assert [name for name, _ in result.warnings] == ["sign <0>", "no sandbox"]
    image = BrokenImage(image=3, threat="L2 0.5", linf=0, l2=0.1, prediction=1, margin=-1, lost=(), certified=0.2)
    result = verdict(sound, [Contribution(credit="Jane", sha256="a" * 64, weights="b" * 64, images=(image,))])
    assert "certificate contradicted" in result.line
    assert result.warnings[0][0] == "image 3 contradicts the certificate"


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
    named = Paper(title=title, authors="Havens, Araujo and Hu", year=2024, url="https://a.b/c_{d}")
    entry = bibtex("Havens2024LoFAST", named)
    assert f"title = {{{{{shown}}}}}," in entry
    assert "author = {Havens and Araujo and Hu}," in entry
    assert "url = {https://a.b/c_%7Bd%7D}" in entry
    assert entry.startswith("@misc{Havens2024LoFAST,\n")
    depths = [entry[: i + 1].count("{") - entry[: i + 1].count("}") for i in range(len(entry))]
    assert (min(depths), depths[-1]) == (0, 0), "BibTeX counts braces even behind a backslash"


@pytest.mark.parametrize(
    ("authors", "shown"),
    [("Croce et al.", "Croce and others"), ("Gupta and Verma", "Gupta and Verma"), ("Sander, M.\\", "Sander and M.\\textbackslash{}"), ("", "unknown")],
)  # fmt: skip
def test_bibtex_lists_authors(authors: str, shown: str) -> None:
    entry = bibtex("a{,b", Paper(title="T", authors=authors, year=2024))
    assert f"author = {{{shown}}}" in entry
    assert entry.startswith("@misc{ab,")
