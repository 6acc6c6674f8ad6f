"""A record as the board reads it, of a digits row with the counts asked for."""

from __future__ import annotations

from pathlib import Path

from benchmark.records.per_image import PerImage, counts
from benchmark.records.record import Record
from benchmark.records.regression import Built
from benchmark.runtime import files
from benchmark.specs.base import to_json

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


def content() -> dict:
    """Return a Record with every kind of number, as JSON values."""
    threat, rules = {"norm": "Linf", "eps": 0.15}, {"names": ["fog"], "severities": [1, 2]}
    fog = {"name": "fog", "severities": [proportion(80), proportion(70)], "mean": proportion(150, 200)}
    return record("Tiny2026Net", 40, 0, "T", certified=61, smoothed=61).model_dump(mode="json") | {
        "track": "tiny", "variant": "small", "clean": proportion(95), "training": None,
        "attacks": [{
            "id": "autoattack-Linf-0.15", "suite": "standard", "spec": {"attack": "autoattack", **threat},
            "engine": "fast", "accuracy": proportion(42), "remaining": {"apgd-ce": 50, "square": 42},
        }],
        "robust": [{"threat": threat, "accuracy": proportion(40), "attacks": ["autoattack-Linf-0.15"]}],
        "corrupted": {
            "rules": rules, "parameters": "P", "versions": {}, "accuracy": proportion(150, 200),
            "severities": [proportion(80), proportion(70)], "corruptions": [fog],
        },
        "sha256": {
            "data test": "d1", "weights": "w1", "evidence": "e1", "adversarial images standard": "a1", "code train": "c1",
        },
        "environment": {"torch": "2.15.0", "python": "3.11.7", "arithmetic": "portable", "threads": "1"},
    }  # fmt: skip


def changed(*path: str | int, to: object = None) -> Record:
    """The Record of `content` but for one value; as it is without a path."""
    made = content()
    inside = made
    for key in path[:-1]:
        inside = inside[key]  # type: ignore[index]
    if path:
        inside[path[-1]] = to  # type: ignore[index]
    return Record.model_validate(made)


def images(record: Record, *flipped: tuple[str, int]) -> PerImage:
    """The first images count, the later ones do not; those `flipped` the other way round."""
    scores = {}
    for name, (count, total) in counts(record).items():
        if name != "corrupted":  # the sum of its corruptions
            each = [count // record.n + (image < count % record.n) for image in range(record.n)]
            assert sum(each) == count <= total
            scores[name] = each
    for name, image in flipped:
        scores[name][image] = 1 - scores[name][image]
    return PerImage(
        row=record.row,
        scores={name: "".join(map(str, each)) for name, each in scores.items()},
        radii={
            "certified": tuple(0.3 - image / 500 if image < 61 else 0.0 for image in range(record.n)),
            "smoothed": (0.2,) * record.n,
        },
    )


def write(record: Record, *flipped: tuple[str, int], published: bool = False) -> None:
    """Write a Record and its images, as built or as published, below the working directory."""
    home, names = Path("work") / record.track / record.row / "record", ("record.json", "per_image.json")
    if published:
        home, names = Path("leaderboard/results") / record.track, (f"{record.row}.json", f"images/{record.row}.json")
    for name, content in zip(names, (record, images(record, *flipped)), strict=True):
        files.write(home / name, to_json(content))


def built(record: Record, machine: dict[str, str], *flipped: tuple[str, int]) -> Built:
    return Built(record, images(record, *flipped), machine)
