"""A board of rows with given verdicts by image, and what its pages read of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
from site_rows import put
from tiny_record import proportion, record

from benchmark.records.record import Record
from benchmark.specs import tracks
from leaderboard.pages.board_data import Board
from leaderboard.rank import rank

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
