"""A board of rows with given verdicts by image, and what its pages read of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save
from tiny_record import proportion, record

from benchmark.loading import tracks
from benchmark.results.record import Record
from leaderboard.pages.board_data import Board
from leaderboard.rank import rank

TRACK = tracks.load("digits")
ROBUST = "robust Linf 0.15"


def made(name: str, verdicts: str, title: str = "") -> Record:
    """A record of `name` whose first robust accuracy is counted from `verdicts`, a digit an image."""
    n = len(verdicts)
    content = record(name, 0, 0, title=title or f"Model {name}").model_dump()
    content |= {"n": n, "clean": proportion(n, n)}
    content["robust"][0]["accuracy"] = proportion(verdicts.count("1"), n)
    return Record.model_validate(content)


def board(folder: Path, verdicts: Mapping[str, str], titles: Mapping[str, str] | None = None) -> Board:
    """Rows `<name>-v`, all right when clean, robust by their `verdicts`; broken at l2 0.4 where not, certified to 0.2."""
    records = [made(name, digits, (titles or {}).get(name, "")) for name, digits in verdicts.items()]
    images = {
        one.row: {ROBUST: digits, "clean": "1" * len(digits)}
        for one, digits in zip(records, verdicts.values(), strict=True)
    }
    for one, digits in zip(records, verdicts.values(), strict=True):
        place = folder / one.row / "record"
        place.mkdir(parents=True)
        (place / "record.json").write_text(one.model_dump_json())
        pq.write_table(evidence(digits), place / "evidence.parquet")
        pixels = np.linspace(0, 1, len(digits), dtype=np.float32)[:, None, None, None] * np.ones(
            (1, 1, 8, 8), np.float32
        )
        (place / "images.safetensors").write_bytes(save({"clean": pixels}))
    return Board(TRACK, rank(records, TRACK, images), folder, images=images)


def evidence(digits: str) -> pa.Table:
    n = len(digits)
    return pa.table(
        {
            "image": [*range(n)],
            "label": [3] * n,
            "clean_prediction": [3] * n,
            "clean_margin": [0.5] * n,
            "pgd-L2-0.5:success": [digit == "0" for digit in digits],
            "pgd-L2-0.5:l2": [0.4 if digit == "0" else 0.0 for digit in digits],
            "certified_l2": [0.2] * n,
        }
    )
