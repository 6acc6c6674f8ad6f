"""Published studies of given numbers, and of points."""

from __future__ import annotations

from tiny_record import TRAINING

from benchmark.records.study import PublishedStudy


def published(values: dict[str, list[float]], figure: dict | None = None, **study) -> PublishedStudy:
    """A study of named cells with one number a seed; `curve` is three times that number."""
    seeds = list(range(len(next(iter(values.values())))))
    cells = [{"name": name, "set": {"training.epochs": 3}} for name in values]
    runs = [
        {
            "cell": name, "seed": seed, "training": TRAINING, "parameters": 7, "weights": "w",
            "values": {"clean": numbers[seed], "m: curve": [numbers[seed], 2.0, 3.0]},
        }
        for name, numbers in values.items()
        for seed in seeds
    ]  # fmt: skip
    asked = {
        "title": "A <study>", "source": "Table 9", "track": "digits", "variant": "v", "seeds": seeds, "cells": cells,
        "measures": [{"measure": "clean"}, {"measure": "own", "name": "m"}], "figure": figure,
    }  # fmt: skip
    result = {
        "submission": "Sub", "name": "grid", "track": "digits", "track_version": 2, "variant": "v", "n": 100,
        "cells": [{**cell, "levels": {"cell": cell["name"]}, "settings": {}} for cell in cells],
        "measures": asked["measures"], "runs": runs, "x": {"m: curve": [0.1, 0.2, 0.4]}, "sha256": {"code": "c0de"}, "environment": {},
    }  # fmt: skip
    return PublishedStudy.model_validate({"study": {**asked, **study}, "result": result})


CLEAN, ADVERSARIAL = [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)], [(10.0, 0.0), (10.0, 1.0), (1.0, 0.1)]


def scattered(axes: tuple[str, str] | None = None, numbers: bool = True, figure: dict | None = None) -> PublishedStudy:
    """Two settings with two seeds; seed 1's points are shifted by 100, the second setting's by 5."""
    content = published({"base": [0.5, 0.6], "<other>": [0.55, 0.6]}, figure or {"draw": "scatter"}).model_dump()
    for run in content["result"]["runs"]:
        shift = 100 * run["seed"] + 5 * (run["cell"] != "base")
        classes = [
            {"name": name, "points": [(x + shift, y) for x, y in points]}
            for name, points in (("clean", CLEAN), ("<adversarial>", ADVERSARIAL))
        ]
        run["points"] = {"m: tsne": {"classes": classes, "axes": axes}}
        run["values"] = run["values"] if numbers else {}
    return PublishedStudy.model_validate(content)
