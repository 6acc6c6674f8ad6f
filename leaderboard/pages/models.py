"""A page for each row: its numbers, what they rest on, and how to check them."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from PIL import Image
from safetensors.numpy import load_file

from benchmark.results.record import Record
from leaderboard.charts.lines import reliability_charts
from leaderboard.pages.board_data import Board
from leaderboard.pages.studies import on_page
from leaderboard.rank import Row
from leaderboard.site import Site

PICTURES = 12  # images shown on a model's page


def write_pages(site: Site, board: Board) -> None:
    for row in board.rows:
        _write_page(site, board, row)


def _write_page(site: Site, board: Board, row: Row) -> None:
    record, place = row.record, f"models/{row.record.row}"
    source = board.folder / record.row / "record"
    evidence = pq.read_table(source / "evidence.parquet")
    site.copy(f"{place}/record.json", source / "record.json")
    for picture in record.pictures:
        site.copy(f"{place}/pictures/{picture.file}", source / "pictures" / picture.file)
    site.write(f"{place}/evidence.csv", _csv(evidence))
    seen = evidence.to_pylist()
    shown, files = on_page(record, board.tables, board.ages)
    for name, text in files.items():
        site.write(f"{place}/{name}", text)
    text = board.render(
        "model.html", "../../", row=row, evidence=seen, pictures=pictures(source, seen, record),
        charts=reliability_charts(record), studies=shown,
    )  # fmt: skip
    site.write(f"{place}/index.html", text)


def _csv(evidence: pa.Table) -> bytes:
    written = io.BytesIO()
    pyarrow.csv.write_csv(evidence, written)
    return written.getvalue()


def pictures(source: Path, evidence: list[dict[str, Any]], record: Record) -> list[dict[str, Any]]:
    """The first evaluation images as the model saw them: clean, then under each attack whose images are kept."""
    images = load_file(source / "images.safetensors")
    kept = [attack.id for attack in record.attacks if attack.id in images]
    return [
        {
            "image": index,
            "label": seen["label"],
            "clean": {"src": _png(images["clean"][index]), "prediction": seen["clean_prediction"]},
            "attacked": [
                {
                    "attack": attack,
                    "src": _png(images[attack][index]),
                    "prediction": seen[f"{attack}:prediction"],
                    "success": seen[f"{attack}:success"],
                }
                for attack in kept
            ],
        }
        for index, seen in enumerate(evidence[:PICTURES])
    ]


def _png(image: np.ndarray) -> str:
    """(c, h, w) in [0, 1] to a data URI; the browser scales it."""
    pixels = np.rint(image * 255).astype(np.uint8)
    picture = Image.fromarray(pixels[0] if pixels.shape[0] == 1 else pixels.transpose(1, 2, 0))
    data = io.BytesIO()
    picture.save(data, "PNG")
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()
