"""Comparing rows: the files that the page loads, and the tests of all pairs on it."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy.stats import binomtest
from seeds_study import published
from seeds_study import verdicts as first
from site_rows import ROBUST, TRACK, board

from benchmark.records.comparison import better
from leaderboard.image_radii import image_radii
from leaderboard.pages import compare
from leaderboard.pages.board_data import Board
from leaderboard.pages.compare import packed, pairs
from leaderboard.rank import rank
from leaderboard.site import Site

VERDICTS = {"A": first(70), "B": first(30), "C": "0" * 60 + first(40, 40)}


def written(folder: Path, made: Board) -> Path:
    site = Site(folder / "site")
    for row in made.rows:
        evidence = pq.read_table(made.folder / row.record.row / "record/evidence.parquet")
        compare.write_row(site, made, row, image_radii(evidence))
    compare.write_pages(site, made)
    site.close()
    return folder / "site"


def loaded(site: Path, row: str) -> dict:
    text = (site / f"models/{row}/images.js").read_text()
    return json.loads(text.removeprefix(f'RVB.add("{row}",').removesuffix(");\n"))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Board:
    return board(tmp_path_factory.mktemp("compared"), VERDICTS)


@pytest.fixture(scope="module")
def site(made, tmp_path_factory) -> Path:
    return written(tmp_path_factory.mktemp("written"), made)


def known(site: Path) -> dict:
    page = (site / "compare/index.html").read_text()
    return json.loads(page.partition('id="known">')[2].partition("</script>")[0])


@given(st.text("01", min_size=1, max_size=70))
def test_verdicts_are_packed_eight_to_a_byte(digits: str) -> None:
    bits = np.unpackbits(np.frombuffer(base64.b64decode(packed(digits)), np.uint8), count=len(digits))
    assert "".join(map(str, bits)) == digits


def test_a_rows_file_holds_its_numbers_verdicts_and_curves(site) -> None:
    data, page = loaded(site, "A-v"), known(site)
    assert data["numbers"][ROBUST] == [0.7, pytest.approx(0.6), pytest.approx(0.8), 70, 100]
    assert data["images"] == {"clean": packed("1" * 100), ROBUST: packed(VERDICTS["A"])}
    assert (data["ranks"][ROBUST], data["seeds"]) == ([1, 1], {})
    curves = {kind: dict(zip(page["radii"], shares, strict=True)) for kind, shares in data["curves"].items()}
    assert (curves["attacked"][0.39], curves["attacked"][0.4], curves["certified"][0.2]) == (1.0, 0.7, 1.0)
    assert curves["certified"][0.25] == 0
    assert [row for row, _, _ in page["rows"]] == ["A-v", "C-v", "B-v"]
    assert page["ranking"] == ROBUST
    assert "corrupted" not in page["paired"]


def test_tests_of_all_pairs_are_scipys(made, site) -> None:
    text = (site / "compare/index.html").read_text()
    shown = dict(re.findall(r'<tr data-pair="([^"]+)" data-p="([^"]+)"', text))
    assert set(shown) == {"A-v,C-v", "A-v,B-v", "C-v,B-v"}
    for pair in pairs(made, ROBUST):
        digits, other = (made.images[row.record.row][ROBUST] for row in (pair.first, pair.second))
        seen = list(zip(digits, other, strict=True))
        wins, losses = seen.count(("1", "0")), seen.count(("0", "1"))
        assert (pair.only_first, pair.only_second) == (wins, losses)
        assert pair.both + pair.neither == 100 - wins - losses
        p = binomtest(wins, wins + losses).pvalue
        assert float(shown[f"{pair.first.record.row},{pair.second.record.row}"]) == pytest.approx(p)
        assert pair.order == better((digits, other), None, 3)
    assert (known(site)["errors"][ROBUST], known(site)["seeds"][ROBUST]) == (0.05 / 3, [])
    rows = [re.sub(r"<[^>]+>", " ", row).split() for row in re.findall(r"<tr data-pair.*?</tr>", text, re.S)]
    assert rows[1][-3:] == ["1.8e-12", "first", "better"]
    assert rows[2][-2:] == ["not", "settled"]


def test_the_page_knows_which_pairs_only_the_seeds_leave_open(made, tmp_path) -> None:
    studies = [published("A", [70, 70, 71]), published("C", [30, 80, 90, 20, 70])]
    rows = rank([row.record for row in made.rows], TRACK, made.images, studies)
    assert known(written(tmp_path, replace(made, rows=rows)))["seeds"][ROBUST] == ["A-v,C-v"]


def test_beside_a_row_without_distances_a_curve_falls_where_its_balls_end(made) -> None:
    (row, *_) = made.rows
    scores = {f"robust {r.threat.label}": first(r.accuracy.count) for r in row.record.robust}
    seen = image_radii(pq.read_table(made.folder / row.record.row / "record/evidence.parquet"))
    data = compare.row_data(replace(made, images={row.record.row: scores}), row, seen)
    curve = dict(zip(made.radii, data["balls"], strict=True))
    assert (curve[0.49], curve[0.5], data["curves"]["attacked"][40]) == (1.0, 0.0, 0.7), "broken at 0.4, in the ball of 0.5"


def test_a_board_of_many_rows_has_no_table_of_all_pairs(tmp_path) -> None:
    made = board(tmp_path / "work", {f"M{i:02}": first(i) for i in range(1, compare.ALL_PAIRS + 2)})
    page = (written(tmp_path, made) / "compare/index.html").read_text()
    assert "data-pair" not in page
    assert known(tmp_path / "site")["seeds"][ROBUST] == []
    assert "Each model's numbers are on" in page.partition("<noscript>")[2]


def test_without_verdicts_by_image_or_rows_the_page_says_so(made, tmp_path) -> None:
    site = written(tmp_path / "bare", Board(TRACK, made.rows, made.folder))
    assert loaded(site, "A-v")["images"] == {}
    assert "data-pair" not in (site / "compare/index.html").read_text()
    empty = written(tmp_path / "empty", Board(TRACK, [], made.folder))
    assert "Nothing to compare yet" in (empty / "compare/index.html").read_text()


def test_all_images_stand_in_one_picture(made, site, tmp_path, monkeypatch) -> None:
    where = known(site)["sprite"]
    picture = np.asarray(Image.open(site / "compare/images.png"))
    assert picture.shape == (8 * where["lines"], 8 * where["across"])
    for image in (0, 41, 99):
        line, column = divmod(image, where["across"])
        tile = picture[8 * line : 8 * line + 8, 8 * column : 8 * column + 8]
        assert (tile == round(255 * image / 99)).all()
    monkeypatch.setattr(compare, "PIXELS", 6_399)
    few = written(tmp_path / "few", made)
    assert known(few)["sprite"] is None
    assert not (few / "compare/images.png").exists()
