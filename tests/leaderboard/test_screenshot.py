"""README.md's picture of the board."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image

from benchmark.runtime.errors import BenchmarkError
from leaderboard import screenshot

PAGE = """<html><head><link rel="stylesheet" href="static/style.css"></head><body><div id="board"></div>{}</body></html>"""
STYLE = "body { margin: 0 } #board { height: 200px; background: #14508c } details { height: 400px; background: #b3261e }"


def site(folder: Path, body: str = "") -> Path:
    (folder / "static").mkdir(parents=True)
    (folder / "static/style.css").write_text(STYLE)
    (folder / "index.html").write_text(PAGE.format(body))
    return folder


@pytest.mark.browser
@pytest.mark.skipif(not any(map(shutil.which, screenshot.BROWSERS)), reason="needs chromium (Debian package)")
def test_the_picture_ends_where_the_board_does(tmp_path) -> None:
    screenshot.photograph(site(tmp_path / "site", '<details class="key"></details>'), tmp_path / "new/board.png")
    picture = Image.open(tmp_path / "new/board.png")
    assert picture.size == (1.5 * screenshot.WIDTH, 1.5 * 200 + screenshot.MARGIN)
    assert picture.convert("RGB").getpixel((100, 100)) == (0x14, 0x50, 0x8C)


@pytest.mark.browser
@pytest.mark.skipif(not any(map(shutil.which, screenshot.BROWSERS)), reason="needs chromium (Debian package)")
def test_a_blank_page_is_no_picture(tmp_path) -> None:
    empty = site(tmp_path / "site")
    (empty / "static/style.css").write_text("")
    with pytest.raises(BenchmarkError, match="is blank"):
        screenshot.photograph(empty, tmp_path / "board.png")
    assert not (tmp_path / "board.png").exists()


def test_what_is_missing_is_said_in_a_line(tmp_path, monkeypatch) -> None:
    with pytest.raises(BenchmarkError, match=r"index.html is missing; run `rvb site` to build it"):
        screenshot.photograph(tmp_path, tmp_path / "board.png")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(BenchmarkError, match="no Chromium found; install it"):
        screenshot.photograph(site(tmp_path / "site"), tmp_path / "board.png")
