"""Two to five rows side by side: a page that loads what it compares, and a small file a row for it to load."""

from __future__ import annotations

import base64
import io
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors import safe_open

from benchmark.records.comparison import ERROR, better, mcnemar
from leaderboard.charts.sandwich import overlay, shares
from leaderboard.image_radii import ImageRadii, ball_radii
from leaderboard.pages.board_data import Board
from leaderboard.rank import Row, ball, out_of_reach
from leaderboard.site import Site

ALL_PAIRS = 20  # rows, up to which the page has a table of all pairs
LONGEST = 200  # characters of a title in the page's list of rows
PIXELS = 2_000_000  # of all evaluation images, up to which the page shows them
RADII = 2000  # images whose radii the page is given
ACROSS = 40  # images in a line of the picture that holds them all


@dataclass(frozen=True)
class Pair:
    """Two rows' verdicts on the same images, with McNemar's exact p-value.

    `order` is 1 where the first is shown to be better, by seeds too where both have them, -1 where the other is, else 0.
    """

    first: Row
    second: Row
    both: int
    only_first: int
    only_second: int
    neither: int
    p: float
    order: int


def write_pages(site: Site, board: Board) -> None:
    sprite = _clean_sprite(board)
    if sprite:
        site.write("compare/images.png", sprite[0])
    key = board.ranking
    errors = {name: error_of_a_pair(board, name) for name in board.paired}
    content: dict[str, Any] = {
        "rows": [[row.record.row, row.record.title[:LONGEST], row.rank] for row in board.rows],
        "numbers": board.columns,
        "labels": {name: ball(name) for name in board.columns},
        "paired": board.paired,
        "ranking": key,
        "radii": board.radii,
        "attacked": board.attacked,
        "overlay": overlay(),
        "errors": errors,
        "seeds": {
            name: [_names(p) for p in pairs(board, name, seeds=True) if p.p <= errors[name] and not p.order]
            for name in board.paired
        },
        "beyond": out_of_reach(board.track),
        "sprite": sprite[1] if sprite else None,
    }
    every = pairs(board, key) if len(board.rows) <= ALL_PAIRS and key in board.paired else None
    site.write(
        "compare/index.html", board.render("compare.html", "../", known=content, pairs=every, key=key, error=errors[key])
    )


def write_row(site: Site, board: Board, row: Row, radii: ImageRadii) -> None:
    """Write the file of one row, which the page loads, and its attacked images where they are kept."""
    data, sprite = row_data(board, row, radii), _attacked_sprite(board, row)
    if sprite:
        site.write(f"models/{row.record.row}/{sprite[1]['file']}", sprite[0])
        data["sprite"] = sprite[1]
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    site.write(f"models/{row.record.row}/images.js", f"RVB.add({json.dumps(row.record.row)},{text});\n")


def row_data(board: Board, row: Row, radii: ImageRadii) -> dict[str, Any]:
    """Return what the page needs of one row: its numbers, its verdicts by image (`packed`), its curves over the radius.

    `certified` and `broken` are the l2 radii of the first RADII attacked images; null for one that no attack broke. `balls`
    is the robust curve by attacked balls alone, for charts beside rows whose distances are not kept; null where not known.
    """
    scores, curves, balls = (board.images.get(row.record.row, {}), shares(radii, board.radii) if board.radii else {}, None)
    if all(f"robust {result.threat.label}" in scores for result in row.record.robust):
        lost = ball_radii(scores, row.record, math.prod(board.track.data.shape), radii.n)
        balls = shares(replace(radii, broken=lost), board.radii)["attacked"]
    numbers, seeds = {}, {}
    for name, cell, spread in zip(board.columns, row.cells, row.spreads, strict=True):
        if cell is not None:
            numbers[name] = [cell.value, cell.low, cell.high, cell.count, cell.n]
        if spread is not None:
            seeds[name] = [spread.mean, spread.low, spread.high]
    few = slice(min(radii.n, RADII))
    nearest = [None if math.isinf(l2) else l2 for l2 in np.round(radii.broken[few], 4).tolist()]
    proven = None if radii.certified is None else np.round(radii.certified[few], 4).tolist()
    return {
        "certified": proven,
        "broken": nearest,
        "ranks": {name: (standing.best, standing.worst) for name, standing in row.standings.items()},
        "trust": row.record.trust,
        "division": row.record.division,
        "parameters": row.record.parameters,
        "flops": row.record.flops,
        "numbers": numbers,
        "seeds": seeds,
        "images": {name: packed(scores[name]) for name in board.paired if name in scores},
        "curves": curves,
        "balls": balls,
        "distances": radii.distances,
    }


def packed(digits: str) -> str:
    """Return digits of 1 and 0 in base64: eight to a byte, the first the highest bit."""
    bits = np.frombuffer(digits.encode(), np.uint8) == ord("1")
    return base64.b64encode(np.packbits(bits).tobytes()).decode()


def pairs(board: Board, name: str, seeds: bool = False) -> list[Pair]:
    """Return every pair of rows that have a number, or of those whose seeds are known too."""
    judged = [row for row in board.rows if name in board.images.get(row.record.row, {})]
    judged = [row for row in judged if not seeds or (row.trainings and name in row.trainings.verdicts)]
    return [_pair(a, b, board.images, name, _comparisons(board, name)) for a, b in itertools.combinations(judged, 2)]


def error_of_a_pair(board: Board, name: str) -> float:
    """Return the largest p-value that orders two rows by a number: ERROR divided by the pairs of rows that have it."""
    return ERROR / max(1, _comparisons(board, name))


def _comparisons(board: Board, name: str) -> int:
    count = sum(name in row.standings for row in board.rows)
    return count * (count - 1) // 2


def _names(pair: Pair) -> str:
    return f"{pair.first.record.row},{pair.second.record.row}"


def _pair(first: Row, second: Row, images: Mapping[str, Mapping[str, str]], name: str, comparisons: int) -> Pair:
    verdicts, others = images[first.record.row][name], images[second.record.row][name]
    seen = list(zip(verdicts, others, strict=True))
    both, only_first, only_second, neither = (seen.count(v) for v in (("1", "1"), ("1", "0"), ("0", "1"), ("0", "0")))
    seeds = None
    if first.trainings and second.trainings and name in first.trainings.verdicts and name in second.trainings.verdicts:
        seeds = first.trainings.verdicts[name], second.trainings.verdicts[name]
    order = better((verdicts, others), seeds, max(1, comparisons))
    return Pair(first, second, both, only_first, only_second, neither, mcnemar(verdicts, others), order)


def _clean_sprite(board: Board) -> tuple[bytes, dict[str, Any]] | None:
    """Return all evaluation images in one picture; None where no row is built here, or they are too many."""
    sources = [source for row in board.rows if (source := board.source(row.record.row))]
    path = next((path for source in sources if (path := source / "images.safetensors").is_file()), None)
    return _sprite(path, ["clean"], "images.png") if path else None


def _attacked_sprite(board: Board, row: Row) -> tuple[bytes, dict[str, Any]] | None:
    """Return a row's images under the attack that ranks it in one picture; None where they are not kept here."""
    source, threat = board.source(row.record.row), board.ranking.partition(" ")[2]
    attacks = [attack.id for attack in row.record.attacks if attack.spec.threat.label == threat]
    return _sprite(source / "images.safetensors", attacks, "attacked.png") if source else None


def _sprite(path: Path, names: Sequence[str], file: str) -> tuple[bytes, dict[str, Any]] | None:
    """Return the first tensor of `names` that a file has as a PNG, ACROSS images in a line, and where they are in it."""
    if not path.is_file():
        return None
    with safe_open(path, "np") as stored:
        kept = {*stored.keys()}
        name = next((name for name in names if name in kept), "")
        shape = stored.get_slice(name).get_shape() if name else []
        if len(shape) != 4 or shape[1] not in (1, 3) or shape[0] * shape[2] * shape[3] > PIXELS:
            return None
        images = stored.get_tensor(name)
    n, _, height, width = images.shape
    lines = -(-n // ACROSS)
    canvas = np.zeros((lines * ACROSS, height, width, images.shape[1]), np.uint8)
    canvas[:n] = np.rint(images * 255).astype(np.uint8).transpose(0, 2, 3, 1)
    whole = canvas.reshape(lines, ACROSS, height, width, -1).swapaxes(1, 2).reshape(lines * height, ACROSS * width, -1)
    data = io.BytesIO()
    Image.fromarray(whole[..., 0] if whole.shape[-1] == 1 else whole).save(data, "PNG")
    about = {"name": name, "file": file, "across": ACROSS, "lines": lines, "width": width, "height": height, "n": n}
    return data.getvalue(), about
