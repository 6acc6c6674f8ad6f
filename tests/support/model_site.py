"""A row of random evidence with images, and its page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from site_rows import put, render
from tiny_record import proportion, record

from benchmark.records.record import Record
from benchmark.specs import tracks
from leaderboard.rank import rank

ATTACKS = (("autoattack", "Linf", 0.15), ("autoattack", "L2", 0.5))
TRACK = tracks.load("digits")
CERTIFICATE = {
    "name": "local", "guarantee": "It holds.", "parameters": {}, "float32_gap": 1e-7, "float32_bound": 1e-6,
    "audit": {
        "images": 4, "restarts": 2, "attacks": ["pgd"], "sample": 2, "layers": 1, "layer_trials": 10, "worst_ratio": 0.5,
        "float64_disagreements": 0, "ties": 0, "planted": 0, "closest_plant": 0.0,
    },
}  # fmt: skip


def row(name: str = "Shown", certified: bool = True, **changes: Any) -> Record:
    """A row of two attacks, with a certificate or without, and these fields besides."""
    made = record(name, 40, 30, certified=20 if certified else None).model_dump()
    made["certificate"] = CERTIFICATE if certified else None
    made["attacks"] = [
        {
            "id": f"{attack}-{norm}-{eps:g}", "suite": "standard", "accuracy": proportion(40), "remaining": {"all": 40},
            "spec": {"attack": attack, "norm": norm, "eps": eps},
        }
        for attack, norm, eps in ATTACKS
    ]  # fmt: skip
    made["sha256"] = {"adversarial images standard": "a" * 64, "weights": "b" * 64}
    return Record.model_validate(made | changes)


def evidence(made: Record, n: int, seed: int = 0) -> pa.Table:
    """Of n images, random but so that nothing certified is broken; distances and radii have ties."""
    rng = np.random.default_rng(seed)
    right = rng.random(n) < 0.9
    certified = np.where(right, rng.integers(0, 40, n) / 80, 0.0)
    columns: dict[str, Any] = {
        "image": np.arange(n),
        "label": rng.integers(0, 10, n),
        "clean_margin": np.where(right, rng.random(n) + 0.1, -rng.random(n)).astype(np.float32),
    }
    columns["clean_prediction"] = np.where(right, columns["label"], (columns["label"] + 1) % 10)
    for attack in made.attacks:
        success = right & (rng.random(n) < 0.5)
        distance = np.where(success, certified + 0.01 + rng.integers(0, 50, n) / 70, 0.0)
        columns |= {
            f"{attack.id}:success": success, f"{attack.id}:l2": distance, f"{attack.id}:linf": distance / 4,
            f"{attack.id}:margin": np.where(success, -0.1, 0.1).astype(np.float32),
            f"{attack.id}:prediction": np.where(success, (columns["label"] + 1) % 10, columns["label"]),
        }  # fmt: skip
    if made.certificate:
        columns["certified_l2"] = certified
    return pa.table(columns)


def page(made: Record, tmp_path: Path, n: int = 60) -> Path:
    """The folder of the row's page."""
    put(made, tmp_path / "work", evidence(made, n))
    render(tmp_path / "site", TRACK, rank([made], TRACK), tmp_path / "work")
    return tmp_path / "site/models" / made.row
