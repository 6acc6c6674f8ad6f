"""A record as the board reads it, of a digits row with the counts asked for."""

from __future__ import annotations

from benchmark.records.record import Record

TRAINING = {
    "epochs": 1, "selected_epoch": 1, "selected_by": "score", "validation_score": 0.5, "seed": 0, "device": "cpu",
    "precision": "32-true",
}  # fmt: skip


def proportion(count: int, n: int = 100) -> dict:
    return {"value": count / n, "low": max(0, count / n - 0.1), "high": min(1, count / n + 0.1), "count": count, "n": n}


def record(
    name: str, linf: int, l2: int, title: str = "A model", certified: int | None = None, smoothed: int | None = None
) -> Record:
    threats = [("Linf", 0.15, linf), ("L2", 0.5, l2), ("L2", 1.0, 0)]
    return Record.model_validate(
        {
            "track": "digits", "track_version": 1, "submission": name, "variant": "v", "title": title, "summary": "S.",
            "paper": {"title": "P", "authors": "A", "year": 2026}, "trust": "rebuilt", "division": "closed",
            "division_reasons": ["deterministic"], "n": 100, "seed": 0, "clean": proportion(97), "attacks": [],
            "robust": [
                {"threat": {"norm": n, "eps": e}, "accuracy": proportion(c), "attacks": []} for n, e, c in threats
            ],
            "certified": [] if certified is None else [
                {"threat": {"norm": "L2", "eps": 0.1}, "accuracy": proportion(certified), "certificate": "local"}
            ],
            "smoothed": None if smoothed is None else {
                "rules": {"sigma": 0.2, "n0": 10, "n": 100, "alpha": 0.001}, "guarantee": "G.", "spent": 60.0,
                "clean": proportion(90),
                "certified": [
                    {"threat": {"norm": "L2", "eps": 0.1}, "accuracy": proportion(smoothed), "certificate": "smoothing"}
                ],
            },
            "parameters": 1234, "flops": 5678,
            "training": {**TRAINING, "selected_by": "validation accuracy"},
            "settings": {"training": {"objective": "standard", "epochs": 1, "batch_size": 2, "learning_rate": 0.1}},
            "sha256": {}, "environment": {},
        }
    )  # fmt: skip
