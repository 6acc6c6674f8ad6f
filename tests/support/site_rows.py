"""Rows of a board as their stages leave them, and found again on its pages."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save
from tiny_record import proportion, record

from benchmark.records.record import Record
from benchmark.specs import tracks
from benchmark.specs.track import Track
from leaderboard import build
from leaderboard.pages.board_data import Board
from leaderboard.rank import Row, rank


def write(row: Record, work: Path, images: int = 1, **columns: float) -> Path:
    """The row with evidence on one image or more, all alike, rightly classified, and these columns; its folder."""
    seen = {"label": 3, "clean_prediction": 3, "clean_margin": 0.5, **columns}
    return put(row, work, pa.table({"image": [*range(images)], **{name: [value] * images for name, value in seen.items()}}))


def put(row: Record, work: Path, evidence: pa.Table) -> Path:
    """The row with this evidence and images that get darker one by one, those of attacks brighter by 0.1; its folder."""
    folder = work / row.row / "record"
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(row.model_dump_json())
    pq.write_table(evidence, folder / "evidence.parquet")
    clean = np.linspace(0, 1, evidence.num_rows, dtype=np.float32)[:, None, None, None] * np.ones((1, 8, 8), np.float32)
    moved = {attack.id: np.clip(clean + np.float32(0.1), 0, 1) for attack in row.attacks}
    (folder / "images.safetensors").write_bytes(save({"clean": clean, **moved}))
    return folder


def render(site: Path, track: Track, rows: list[Row], work: Path, **more: object) -> None:
    build.render(site, Board(track, rows, work, **more))


def board_row(index: str, row: str) -> str:
    """The cells of a row in the board's page."""
    found = re.search(rf'<tr data-row="{row}">(.*?)</tr>', index, re.S)
    assert found
    return found[1]


class Page(HTMLParser):
    """A page whose elements are closed in order, whose ids and regions differ, and that runs nothing of its own.

    Attributes:
        tags: each with its attributes.
        ids: the places in it.
    """

    VOID = frozenset(("meta", "link", "img", "br", "input", "line", "circle", "path", "rect", "polyline", "polygon"))

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.feed(path.read_text())
        ids, regions = self.values("id"), [made["aria-label"] for _, made in self.tags if made.get("role") == "region"]
        assert (self.open, len(ids), len(regions)) == ([], len({*ids}), len({*regions})), path
        levels = [int(tag[1]) for tag, _ in self.tags if re.fullmatch("h[1-6]", tag)]
        assert levels[0] == 1, path
        assert all(after <= before + 1 for before, after in itertools.pairwise(levels)), f"{path}: headings"
        self.ids = {*ids}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not [name for name, _ in attrs if name.startswith("on")], f"{attrs} at {self.getpos()}"
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def values(self, *names: str) -> list[str]:
        """What these attributes are, in order."""
        return [made[name] for _, made in self.tags for name in names if name in made]


TRACK = tracks.load("digits")
ROBUST = "robust Linf 0.15"


def board(folder: Path, verdicts: Mapping[str, str]) -> Board:
    """Rows `<name>-v`, all right when clean, robust by their `verdicts`; broken at l2 0.4 where not, certified to 0.2."""
    records, images = [], {}
    for name, digits in verdicts.items():
        n, lost = len(digits), [digit == "0" for digit in digits]
        content = record(name, 0, 0, title=f"Model {name}").model_dump()
        content |= {"n": n, "clean": proportion(n, n)}
        content["robust"][0]["accuracy"] = proportion(digits.count("1"), n)
        records.append(Record.model_validate(content))
        images[records[-1].row] = {ROBUST: digits, "clean": "1" * n}
        columns = {"image": [*range(n)], "label": [3] * n, "clean_prediction": [3] * n, "clean_margin": [0.5] * n}
        columns |= {"pgd-L2-0.5:success": lost, "pgd-L2-0.5:l2": [0.4 * one for one in lost], "certified_l2": [0.2] * n}
        put(records[-1], folder, pa.table(columns))
    return Board(TRACK, rank(records, TRACK, images), folder, images=images)
