"""The board of a track: one line a row."""

from __future__ import annotations

from leaderboard.pages.board_data import Board
from leaderboard.site import Site


def write_pages(site: Site, board: Board) -> None:
    site.write("index.html", board.render("board.html", ""))
