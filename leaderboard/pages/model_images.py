"""The images of a model's page: clean, the changes of attacks, attacked; and the status of each."""

from __future__ import annotations

import base64
import functools
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from safetensors import safe_open

from benchmark.records.evidence import ROUNDING
from benchmark.records.record import Record
from leaderboard.image_radii import ImageRadii, held, intact

PICTURES = 10  # images shown on a model's page
WRONG, CERTIFIED, BETWEEN, BROKEN = "wrong when clean", "certified", "between", "broken"


@dataclass(frozen=True)
class Settled:
    """How many images are certified, broken, wrong when clean, or none of these (between), at an l2 radius."""

    radius: float
    certified: int | None
    between: int
    broken: int
    wrong: int


def settled(radii: ImageRadii, marked: Sequence[float]) -> list[Settled]:
    """Return a line a radius, the smallest first."""
    places = np.array(sorted({*marked}), float)
    right, whole = int(radii.right.sum()), intact(radii.falls, places).tolist()
    reaches = radii.reaches.get("certified")
    certified = [None] * len(places) if reaches is None else held(reaches, places).tolist()
    return [
        Settled(radius, proven, left - (proven or 0), right - left, radii.n - right)
        for radius, left, proven in zip(places.tolist(), whole, certified, strict=True)
    ]


def state(radii: ImageRadii, image: int, radius: float) -> str:
    """Return the status of an image within `radius`, in a word."""
    if not radii.right[image]:
        return WRONG
    if radii.broken[image] <= radius + ROUNDING:
        return BROKEN
    return CERTIFIED if radii.certified is not None and radii.certified[image] >= radius else BETWEEN


def words(radii: ImageRadii, image: int) -> str:
    """Return the radius to which an image is certified and that at which it is broken, in words."""
    if not radii.right[image]:
        return ""
    near = radii.broken[image]
    parts = [f"certified to {radii.certified[image]:.3f}"] if radii.certified is not None else []
    return ", ".join([*parts, f"broken at {near:.3f}" if np.isfinite(near) else "never broken"])


def pictures(source: Path, evidence: pa.Table, record: Record) -> dict[str, Any]:
    """Return the first evaluation images as data URIs: clean, and under each attack whose images are kept, with its change,
    amplified so that the largest one shown is black or white; mid-grey is none.
    """
    with safe_open(source / "images.safetensors", framework="numpy") as stored:
        kept = [attack.id for attack in record.attacks if attack.id in stored.keys()]  # noqa: SIM118  (no mapping)
        parts = [stored.get_slice(name) for name in ("clean", *kept)]
        clean, *attacked = [part[: min(PICTURES, part.get_shape()[0])] for part in parts]
    few = evidence.slice(0, len(clean))
    values = {name: few[name].to_pylist() for name in few.column_names if name in _wanted(kept)}
    return {
        "images": [
            {"image": i, "label": values["label"][i], "src": _png(shown), "prediction": values["clean_prediction"][i]}
            for i, shown in enumerate(clean)
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
                "right": values["clean_prediction"][i] == values["label"][i],
                "l2": values[f"{name}:l2"][i] if f"{name}:l2" in values else None,
            }
            for i, (image, delta) in enumerate(zip(moved, change, strict=True))
        ],
    }


def _png(image: np.ndarray) -> str:
    """Return an image (c, h, w) in [0, 1], of one channel or three, as a data URI; the browser scales it."""
    pixels = np.rint(image * 255).astype(np.uint8).transpose(1, 2, 0)
    return _encoded(pixels.tobytes(), pixels.shape)


@functools.lru_cache(maxsize=256)  # an attack that finds nothing leaves an image as it was
def _encoded(pixels: bytes, shape: tuple[int, int, int]) -> str:
    """Return a PNG. An imaging library takes ten times as long for images this small."""
    height, width, channels = shape
    rows = np.zeros((height, 1 + width * channels), np.uint8)  # each begins with its filter, 0: none
    rows[:, 1:] = np.frombuffer(pixels, np.uint8).reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), 1)), (b"IEND", b"")]
    chunks = b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    )
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + chunks).decode()
