"""The images of a model's page: clean, what an attack changed, attacked; and each image's line in the table of all."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from safetensors import safe_open

from benchmark.results.record import Record
from leaderboard.image_radii import ROUNDING, ImageRadii

PICTURES = 12  # images shown on a model's page
LINES = 200  # lines of its table of images; the CSV file has all
WRONG, CERTIFIED, BETWEEN, BROKEN = "wrong when clean", "certified", "between", "broken"


@dataclass(frozen=True)
class Settled:
    """At an l2 radius, how many images are certified, broken, wrong when clean, or between: none of those."""

    radius: float
    certified: int | None
    between: int
    broken: int
    wrong: int


def settled(found: ImageRadii, radii: Sequence[float]) -> list[Settled]:
    """A line a radius, smallest first."""
    places = np.array(sorted({*radii}), float)
    right, lines = int(found.right.sum()), []
    for radius, intact, held in zip(places.tolist(), found.attacked(places).tolist(), found.held(places).tolist(), strict=True):
        certified = held if found.certified is not None else None
        lines.append(Settled(radius, certified, intact - (certified or 0), right - intact, found.n - right))
    return lines


def state(found: ImageRadii, image: int, radius: float) -> str:
    """What is known of an image within `radius`, in a word."""
    if not found.right[image]:
        return WRONG
    if found.broken[image] <= radius + ROUNDING:
        return BROKEN
    return CERTIFIED if found.certified is not None and found.certified[image] >= radius else BETWEEN


def words(found: ImageRadii, image: int) -> str:
    """How far an image is certified and how near it is broken."""
    if not found.right[image]:
        return ""
    near = found.broken[image]
    parts = [f"certified to {found.certified[image]:.3f}"] if found.certified is not None else []
    return ", ".join([*parts, f"broken at {near:.3f}" if np.isfinite(near) else "never broken"])


def pictures(source: Path, evidence: pa.Table, record: Record) -> dict[str, Any]:
    """The first evaluation images as the model saw them: clean, then under each attack whose images are kept, with what the
    attack changed, so amplified that the largest change that is shown is black or white; mid-grey is none.
    """
    few = evidence.slice(0, PICTURES)
    count = few.num_rows
    with safe_open(source / "images.safetensors", framework="numpy") as stored:
        kept = [attack.id for attack in record.attacks if attack.id in stored.keys()]  # noqa: SIM118  (no mapping)
        clean, *attacked = [stored.get_slice(name)[:count] for name in ("clean", *kept)]
    values = {name: few[name].to_pylist() for name in few.column_names if name in _wanted(kept)}
    return {
        "images": [
            {"image": i, "label": values["label"][i], "src": _png(clean[i]), "prediction": values["clean_prediction"][i]}
            for i in range(count)
        ],
        "attacks": [_attacked(name, clean, moved, values) for name, moved in zip(kept, attacked, strict=True)],
    }


def _wanted(kept: Sequence[str]) -> set[str]:
    return {"label", "clean_prediction"} | {f"{name}:{part}" for name in kept for part in ("prediction", "success", "l2")}


def _attacked(name: str, clean: np.ndarray, moved: np.ndarray, values: dict[str, list[Any]]) -> dict[str, Any]:
    change = moved - clean
    largest = float(np.abs(change).max(initial=0.0))
    factor = 0.5 / largest if largest > 0 else 1.0
    return {
        "attack": name,
        "factor": f"{factor:.3g}",
        "largest": f"{largest:.3g}",
        "images": [
            {
                "src": _png(image),
                "change": _png(np.clip(0.5 + factor * delta, 0, 1)),
                "prediction": values[f"{name}:prediction"][i],
                "success": values[f"{name}:success"][i],
                "l2": values[f"{name}:l2"][i] if f"{name}:l2" in values else None,
            }
            for i, (image, delta) in enumerate(zip(moved, change, strict=True))
        ],
    }


def table(evidence: pa.Table, found: ImageRadii, record: Record) -> tuple[list[str], list[list[tuple[str, bool]]]]:
    """Heads, and a line each of the first images: cells as text, and whether each says that the image is broken."""
    few = evidence.slice(0, LINES)
    values = {name: few[name].to_pylist() for name in few.column_names if _in_table(name, record)}
    count = few.num_rows
    right = found.right[:count].tolist()
    heads, columns = ["image", "label", "clean prediction", "margin"], []
    for name, shape in (("image", "{}"), ("label", "{}"), ("clean_prediction", "{}"), ("clean_margin", "{:.3f}")):
        columns.append([(shape.format(value), False) for value in values[name]])
    if found.certified is not None:
        heads.append("certified l2")
        columns.append([(f"{value:.4f}", False) for value in found.certified[:count].tolist()])
    heads.append("broken at l2")
    nearest = found.broken[:count].tolist()
    columns.append([(f"{b:.4f}" if ok and b != np.inf else "–", ok and b != np.inf) for b, ok in zip(nearest, right, strict=True)])
    if found.smoothed is not None:
        heads += ["smoothed version", "its certified l2", "hits of samples"]
        radii, said = values["smoothed_l2"], values["smoothed_prediction"]
        columns.append([(str(p) if r > 0 else "undecided", False) for p, r in zip(said, radii, strict=True)])
        columns.append([(f"{radius:.4f}", False) for radius in radii])
        hits = zip(values["smoothed_count"], values["smoothed_samples"], strict=True)
        columns.append([(f"{count} of {samples}", False) for count, samples in hits])
    for attack in record.attacks:
        heads.append(attack.id)
        verdicts = zip(values[f"{attack.id}:success"], values[f"{attack.id}:prediction"], right, strict=True)
        columns.append([(f"broken: {p}", True) if won else ("robust" if ok else "wrong", False) for won, p, ok in verdicts])
    return heads, [list(line) for line in zip(*columns, strict=True)]


def _in_table(name: str, record: Record) -> bool:
    own = {"image", "label", "clean_prediction", "clean_margin"}
    smoothed = {"smoothed_l2", "smoothed_prediction", "smoothed_count", "smoothed_samples"}
    attacks = {f"{attack.id}:{part}" for attack in record.attacks for part in ("success", "prediction")}
    return name in own | smoothed | attacks


def _png(image: np.ndarray) -> str:
    """(c, h, w) in [0, 1], of one channel or three, to a data URI; the browser scales it.

    Written here: for images this small an imaging library takes ten times as long.
    """
    pixels = np.rint(image * 255).astype(np.uint8).transpose(1, 2, 0)
    height, width, channels = pixels.shape
    rows = np.zeros((height, 1 + width * channels), np.uint8)  # each begins with its filter, 0: none
    rows[:, 1:] = pixels.reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b"")]
    chunks = b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    )
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + chunks).decode()
