"""A published study of points, by setting and seed."""

from __future__ import annotations

from published_study import published

from benchmark.records.study import PublishedStudy

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
