"""The rendered site: its pages say what the records say, escaped, without network."""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path

import pytest
from browsers import complaints, needs_chromium, wider_than
from tiny_record import proportion, record

from benchmark.records.accuracy import Proportion
from benchmark.records.study import DeclaredPaper
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import tracks
from leaderboard import build, reading, times
from leaderboard.rank import columns, rank

TRACK = tracks.load("digits")


def test_smoothed_numbers_have_columns_of_their_own_and_do_not_rank() -> None:
    """The smoothed version is another classifier: a higher number of it does not lift the model."""
    rows = rank([record("A", 40, 10, smoothed=10), record("B", 40, 10, smoothed=90)], TRACK)
    assert [row.record.submission for row in rows] == ["A", "B"]
    names = columns(TRACK)
    assert names[-3:] == ["smoothed L2 0.1", "smoothed L2 0.25", "smoothed L2 0.5"]
    assert rows[1].cells[names.index("smoothed L2 0.1")] == Proportion(**proportion(90))
    assert rows[1].cells[names.index("certified L2 0.1")] is None
    assert build.metrics(rows)["B-v"]["smoothed L2 0.1"] == 0.9
    assert columns(TRACK.model_copy(update={"smoothing": None})) == names[:-3]


def test_numbers_lacking_are_empty_not_zero() -> None:
    rows = rank([record("A", 40, 30)], TRACK)
    assert build.table(rows, TRACK).splitlines()[1] == "A-v,0.97,0.4,0.3,0.0,,,,,,"
    assert "certified L2 0.1" not in build.metrics(rows)["A-v"]


def test_missing_or_damaged_files_are_one_line(tmp_path) -> None:
    images, place, papers = (tmp_path / f"{name}.json" for name in ("per_image", "record", "papers"))
    place.write_text(record("A", 40, 30).model_dump_json())
    images.write_text('{"row": "A-v", "scores": {"clean": "101"}}')
    declared = {"Sub": {"summary": "S.", "paper": {"title": "P", "authors": "A", "year": 2024}, "claims": [], "studies": {}}}
    papers.write_text(json.dumps(declared))

    def read() -> tuple[dict, dict]:
        return reading.read_rows(TRACK, [(place, images)], tmp_path, [])[1], reading.read_papers(papers)

    assert read() == ({"A-v": {"clean": "101"}}, {"Sub": DeclaredPaper.model_validate(declared["Sub"])})
    for path in (images, place, papers):
        before = path.read_text()
        for content in ("{", "[]", '{"track": {}}'):
            path.write_text(content)
            with pytest.raises(BenchmarkError, match=rf"{path.name}.*(delete|should be)") as raised:
                read()
            assert "\n" not in str(raised.value)
        path.unlink()
        with pytest.raises(BenchmarkError, match=rf"{path.name} is missing"):
            read()
        path.write_text(before)


@pytest.mark.parametrize("content", ["3", "[3]", '{"A-v": []}', "{"])
def test_damaged_names_of_rows_or_times_are_one_line(tmp_path, monkeypatch, content) -> None:
    rules = Path("benchmark/tracks/digits.yaml").read_text()
    monkeypatch.chdir(tmp_path)
    files.write(Path("benchmark/tracks/digits.yaml"), rules)
    rows = rank([record("A", 40, 30)], TRACK)
    for path, read in (
        ("pipelines/digits/rows.json", lambda: build.build("digits")),
        ("times.json", lambda: times.write_times(tmp_path / "site", tmp_path, rows, tmp_path)),
        ("A-v/times/train.json", lambda: times.times(tmp_path, rows)),
    ):
        files.write(Path(path), content)
        with pytest.raises(BenchmarkError, match=rf"{path}( is|: ).*; (run|delete|bring)") as raised:
            read()
        assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_pages_hold_the_records_numbers_escaped_and_local(built) -> None:
    """Rebuilds the site of a finished project with a hostile title."""
    root = built.root
    path = root / "work/tiny/Tiny2026Net-small/record/record.json"
    content = json.loads(path.read_text())
    content["title"] = "<script>alert(1)</script> & Co"
    path.chmod(0o644)
    path.write_text(json.dumps(content))
    shutil.rmtree(root / "work/tiny/site")
    built.run("leaderboard.build", "tiny")
    site = root / "work/tiny/site"
    pages = [site / "index.html", *site.glob("models/*/index.html")]
    assert len(pages) == 3
    chosen = "compare/index.html"  # whose fragment names rows
    for page in pages:
        text = page.read_text()
        assert "<script>alert" not in text
        for link in re.findall(r'(?:src|href)="([^"]+)"', text):
            if not link.startswith(("data:", "https://")):
                target, _, place = link.partition("#")
                aim = page.parent / (target or page.name)
                assert aim.exists(), f"{page}: {link}"
                assert not place or target.endswith(chosen) or f'id="{place}"' in aim.read_text(), f"{page}: {link}"
        loaded = re.findall(r'<(?:script|img|link)[^>]*(?:src|href)="(https?:[^"]+)"', text)
        assert not loaded, "the site must not need the network"
    index, model, other = (page.read_text() for page in pages)
    assert "&lt;script&gt;alert(1)" in index
    assert f"<b>{100 * content['clean']['value']:.1f}</b>" in index
    (smoothed,) = content["smoothed"]["certified"]
    assert f"<b>{100 * smoothed['accuracy']['value']:.1f}</b>" in index
    assert "Can the attacks be trusted?" in model
    assert html.escape(content["reliability"]["signals"][0]["measured"], quote=False) in model + other
    assert content["smoothed"]["guarantee"] in model + other
    assert json.loads((site / "models/Tiny2026Net-small/record.json").read_text()) == content


@pytest.mark.browser
@needs_chromium
def test_a_reader_finds_a_model_in_a_real_browser(built, browser) -> None:
    from selenium.webdriver.common.by import By

    site: Path = built.root / "work/tiny/site"
    browser.get(f"file://{site}/index.html")
    rows = browser.find_elements(By.CSS_SELECTOR, "tr[data-row]")
    assert [row.get_attribute("data-row") for row in rows] == ["Tiny2026Net-small", "Tiny2026Twin-small"]
    browser.find_element(By.ID, "all").click()
    assert float(rows[0].find_element(By.CSS_SELECTOR, "[data-time=training]").text) > 0
    rows[0].find_element(By.TAG_NAME, "a").click()
    assert browser.find_element(By.TAG_NAME, "h1").text == "Tiny2026Net, small"
    widths = browser.execute_script("return [...document.images].map(i => i.naturalWidth)")
    assert widths
    assert all(width == 8 for width in widths)
    browser.find_element(By.TAG_NAME, "summary").click()
    assert len(browser.find_elements(By.CSS_SELECTOR, ".evidence tbody tr")) == 8
    assert wider_than(browser, 420) <= 0, "a phone should not scroll sideways"
    assert complaints(browser) == []
