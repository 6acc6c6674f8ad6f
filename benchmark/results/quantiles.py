"""Curves of a study that are quantiles over images: which they are, and what of them a table shows. Pure."""

from __future__ import annotations

from itertools import pairwise

from benchmark.results.study import PublishedStudy

LEAST = 21  # levels from which a shape can be drawn
SHOWN = (0.05, 0.25, 0.5, 0.75, 0.95)  # by tables


def quantile_curves(study: PublishedStudy) -> tuple[str, ...]:
    """Labels of the curves that the study draws as violins: over LEAST levels or more, rising from 0 to 1."""
    figure = study.study.figure
    if figure is None or figure.draw != "violins":
        return ()
    chosen = [label for label in study.result.x if not figure.measures or is_named(label, figure.measures)]
    return tuple(label for label in chosen if are_levels(study.result.x[label]))


def curves_like_quantiles(study: PublishedStudy) -> tuple[str, ...]:
    """Those, and what else the same measures give over the same levels, drawn or not."""
    alike = {(_name(label), study.result.x[label]) for label in quantile_curves(study)}
    return tuple(label for label, x in study.result.x.items() if (_name(label), x) in alike)


def is_named(label: str, measures: tuple[str, ...]) -> bool:
    """Whether a figure that names `measures` means what has this label: by all of it, or by what is before a colon in it."""
    return any(label == one or label.startswith(f"{one}: ") for one in measures)


def are_levels(x: tuple[float, ...]) -> bool:
    rising = all(a < b for a, b in pairwise(x))
    return len(x) >= LEAST and rising and x[0] == 0 and x[-1] == 1


def _name(label: str) -> str:
    """Of the measure."""
    return label.partition(": ")[0]
