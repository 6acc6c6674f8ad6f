"""The rendered site: its pages say what the records say, escaped, without network."""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import site_rows
from browsers import complaints, needs_chromium, wider_than
from safetensors.numpy import save
from site_rows import board_row
from tiny_record import proportion, record

from benchmark.loading import tracks
from benchmark.results.proportion import Proportion
from benchmark.results.record import Record
from leaderboard import build, reading
from leaderboard.rank import columns, rank


def reliability(doubtful: int = 0) -> dict:
    signals = [
        {"name": f"sign <{i}>", "measured": f"{i} & more", "sound": i >= doubtful, "explanation": f"why {i}"}
        for i in range(3)
    ]
    steps = [{"steps": k, "margin": m, "accuracy": a} for k, m, a in ((0, 2.0, 0.9), (10, 0.5, 0.6), (100, -0.2, 0.5))]
    radii = [{"eps": e, "accuracy": a} for e, a in ((0.15, 0.5), (0.4, 0.1), (1.0, 0.0))]
    gradients = {"images": 97, "zeros": 0, "quantiles": [(0.0, 0.5), (0.5, 1.5), (1.0, 4.0)]}
    threat = {"norm": "Linf", "eps": 0.15}
    return {"threat": threat, "signals": signals, "gradients": gradients, "steps": steps, "radii": radii}


OVERFITTED = {
    "found": True, "epochs": [7, 8], "trained": 0.9, "pgd": 0.1, "gap": 0.3, "images": 100,
    "probe": {"attack": "pgd", "norm": "Linf", "eps": 0.15, "parameters": {"steps": 10, "step_size": 0.04}},
}  # fmt: skip


def judged(name: str, found: dict | None, overfitting: dict | None = None, processes: int = 1) -> Record:
    made = record(name, 40, 30).model_dump() | {"reliability": found}
    made["training"] |= {"overfitting": overfitting, "processes": processes}
    return Record.model_validate(made)


@pytest.fixture(scope="module")
def rendered(tmp_path_factory) -> Path:
    """A site of three rows: one in doubt, one without, one whose attacks were not judged."""
    tmp_path = tmp_path_factory.mktemp("rendered")
    records = [
        judged("Doubtful", reliability(2), OVERFITTED),
        judged("Sound", reliability(), OVERFITTED | {"found": False, "epochs": []}, processes=4),
        judged("Unjudged", None),
    ]
    for made in records:
        folder = site_rows.write(made, tmp_path)
        (folder / "images.safetensors").write_bytes(save({"clean": np.zeros((1, 1, 8, 8), np.float32)}))
    track = tracks.load("digits")
    site_rows.render(tmp_path / "site", track, rank(records, track), tmp_path)
    return tmp_path / "site"


def board_cell(index: str, row: str) -> str:
    """The cell of trust of a row, which says its doubts too."""
    found = re.search(r'<td class="trust">.*?</td>', board_row(index, row), re.S)
    assert found
    return found[0]


def test_the_board_marks_rows_whose_attacks_are_in_doubt(rendered) -> None:
    index = (rendered / "index.html").read_text()
    assert "⚠ doubts: 2 of 3" in board_cell(index, "Doubtful-v")
    assert 'title="in doubt: sign &lt;0&gt;; sign &lt;1&gt;"' in board_cell(index, "Doubtful-v")
    assert 'href="models/Doubtful-v/index.html#attacks-trusted"' in board_cell(index, "Doubtful-v")
    assert ">no doubts</small>" in board_cell(index, "Sound-v")
    assert ">doubts: –</small>" in board_cell(index, "Unjudged-v")
    assert "<b>Doubts</b>: " in index


def test_the_models_page_explains_each_doubt_and_draws_the_curves(rendered) -> None:
    pages = {
        name: (rendered / "models" / f"{name}-v" / "index.html").read_text()
        for name in ("Doubtful", "Sound", "Unjudged")
    }
    assert "Not without doubt" in pages["Doubtful"]
    assert pages["Doubtful"].count("⚠ doubtful") == 2
    for i, shown in enumerate((True, True, False)):
        assert (f"why {i}" in pages["Doubtful"]) is shown
        assert f"why {i}" not in pages["Sound"]
    assert "No sign against them" in pages["Sound"]
    assert pages["Sound"].count("<td>sound</td>") == 3
    assert "sign &lt;0&gt;" in pages["Sound"]
    assert pages["Sound"].count("<svg") == 2
    assert "0.5 (least), 1.5 (50% lie below), 4 (greatest)" in pages["Sound"]
    assert "Can the attacks be trusted?" not in pages["Unjudged"]
    assert "<svg" not in pages["Unjudged"]


def test_the_models_page_says_whether_training_overfitted(rendered) -> None:
    pages = [
        (rendered / "models" / f"{name}-v" / "index.html").read_text() for name in ("Doubtful", "Sound", "Unjudged")
    ]
    assert "<strong>Catastrophic overfitting</strong> in epochs 7, 8: PGD broke more than 30% of" in pages[0]
    assert "No catastrophic overfitting seen." in pages[1]
    assert "(cpu, 32-true, 4 processes that share each batch);" in pages[1]
    for page in pages[:2]:
        assert (
            "90.0% of 100 validation images withstood the attack trained on, 10.0% also PGD (10 steps, Linf 0.15)"
            in page
        )
    made = pages[2].partition('<h2 id="made">')[2].partition("</section>")[0]
    assert "Trained for 1 epochs with seed 0 (cpu, 32-true);" in made
    assert "overfitting seen" not in made
    assert "<strong>Catastrophic" not in made


@pytest.mark.parametrize("url", ["javascript:alert(1)", "https://example.org/paper"])
def test_a_page_links_to_web_addresses_alone(tmp_path, url) -> None:
    """Whatever way a Record came by another."""
    made = record("Linked", 40, 30)
    made = made.model_copy(update={"paper": made.paper.model_copy(update={"url": url})})
    folder = site_rows.write(made, tmp_path)
    (folder / "images.safetensors").write_bytes(save({"clean": np.zeros((1, 1, 8, 8), np.float32)}))
    track = tracks.load("digits")
    site_rows.render(tmp_path / "site", track, rank([made], track), tmp_path)
    page = (tmp_path / "site/models" / made.row / "index.html").read_text()
    assert ("<a " in page.partition("Row <code>")[0].rpartition("S. A (2026)")[2]) == url.startswith("https:")
    assert ("javascript:" in page) is False


def test_smoothed_numbers_have_columns_of_their_own_and_do_not_rank() -> None:
    """The smoothed version is another classifier: a higher number of it does not lift the model."""
    track = tracks.load("digits")
    rows = rank([record("A", 40, 10, smoothed=10), record("B", 40, 10, smoothed=90)], track)
    assert [row.record.submission for row in rows] == ["A", "B"]
    names = columns(track)
    assert names[-3:] == ["smoothed L2 0.1", "smoothed L2 0.25", "smoothed L2 0.5"]
    assert rows[1].cells[names.index("smoothed L2 0.1")] == Proportion(**proportion(90))
    assert rows[1].cells[names.index("certified L2 0.1")] is None
    assert build.metrics(rows)["B-v"]["smoothed L2 0.1"] == 0.9
    assert columns(track.model_copy(update={"smoothing": None})) == names[:-3]


def test_missing_or_damaged_files_are_one_line(tmp_path) -> None:
    images, record_file = tmp_path / "per_image.json", tmp_path / "record.json"
    for read, path in ((reading.read_images, images), (reading.read_record, record_file)):
        with pytest.raises(SystemExit, match=rf"{path.name} is missing"):
            read(path)
        for content in ("{", "[]", "{}"):
            path.write_text(content)
            with pytest.raises(SystemExit, match=path.name) as raised:
                read(path)
            assert "\n" not in str(raised.value)
    images.write_text('{"row": "A-v", "scores": {"clean": "101"}}')
    assert reading.read_images(images) == {"clean": "101"}
    record_file.write_text('{"track": "digits"}')
    with pytest.raises(SystemExit, match="Field required; delete it"):
        reading.read_record(record_file)


def test_numbers_lacking_are_empty_not_zero() -> None:
    track = tracks.load("digits")
    rows = rank([record("A", 40, 30)], track)
    line = build.table(rows, track).splitlines()[1]
    assert line == "A-v,0.97,0.4,0.3,0.0,,,,,,"
    assert "certified L2 0.1" not in build.metrics(rows)["A-v"]


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
        links = re.findall(r'(?:src|href)="([^"]+)"', text)
        for link in links:
            if not link.startswith(("data:", "https://")):
                target, _, place = link.partition("#")
                aim = page.parent / (target or page.name)
                assert aim.exists(), f"{page}: {link}"
                assert not place or target.endswith(chosen) or f'id="{place}"' in aim.read_text(), f"{page}: {link}"
        loaded = re.findall(r'<(?:script|img|link)[^>]*(?:src|href)="(https?:[^"]+)"', text)
        assert not loaded, "the site must not need the network"
    index = pages[0].read_text()
    assert "&lt;script&gt;alert(1)" in index
    clean = content["clean"]
    assert f"<b>{100 * clean['value']:.1f}</b>" in index
    (smoothed,) = content["smoothed"]["certified"]
    assert f"<b>{100 * smoothed['accuracy']['value']:.1f}</b>" in index
    assert "Can the attacks be trusted?" in pages[1].read_text()
    measured = content["reliability"]["signals"][0]["measured"]
    assert html.escape(measured, quote=False) in pages[1].read_text() + pages[2].read_text()
    assert content["smoothed"]["guarantee"] in pages[1].read_text() + pages[2].read_text()
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
    seconds = rows[0].find_element(By.CSS_SELECTOR, "[data-time=training]").text
    assert float(seconds) > 0
    rows[0].find_element(By.TAG_NAME, "a").click()
    assert browser.find_element(By.TAG_NAME, "h1").text == "Tiny2026Net, small"
    widths = browser.execute_script("return [...document.images].map(i => i.naturalWidth)")
    assert widths
    assert all(width == 8 for width in widths)
    details = browser.find_element(By.TAG_NAME, "summary")
    details.click()
    assert len(browser.find_elements(By.CSS_SELECTOR, ".evidence tbody tr")) == 8
    assert wider_than(browser, 420) <= 0, "a phone should not scroll sideways"
    assert complaints(browser) == []


def test_a_published_formula_stands_beside_the_certificate_and_says_that_it_certifies_nothing(tmp_path) -> None:
    made = record("Formula", 40, 30).model_dump()
    shown = {"formula": "A & B 2023, as printed", "reached": {"0.1": 0.5, "0.25": 0.25, "0.5": 0.0}}
    made["measured"] = {"unsound": {"certvit": shown}, "brightness": 0.5}
    made["training"] |= {"prepared": [{"name": "scaling", "history": {}}], "selected_epoch": 0}
    shown_record = Record.model_validate(made)
    folder = site_rows.write(shown_record, tmp_path)
    (folder / "images.safetensors").write_bytes(save({"clean": np.zeros((1, 1, 8, 8), np.float32)}))
    track = tracks.load("digits")
    site_rows.render(tmp_path / "site", track, rank([shown_record], track), tmp_path)
    page = (tmp_path / "site/models/Formula-v/index.html").read_text()
    table = page.partition("Published formulas that certify nothing")[2].partition("</table>")[0]
    assert "unsound: A &amp; B 2023, as printed" in table
    assert re.findall(r'<td class="number">([0-9.]+)', table) == ["50.0", "25.0", "0.0"]
    assert "<dt>brightness</dt>" in page
    assert "<dt>unsound</dt>" not in page
    assert "Before the first epoch scaling changed them (these weights were selected, as epoch 0)" in page
    assert "unsound" not in (tmp_path / "site/index.html").read_text()
