"""The results of measures of one trained network, per image where images are counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

import torch
from pydantic import Field, Strict, TypeAdapter, ValidationError
from torch import nn

from benchmark.records.points import Points
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.study import MeasureSpec, Value, Verdicts

FARTHEST = 1e12  # from 0
DIGITS = 5  # of the extent, finer than a figure can show

Measure = Callable[..., object]  # (model, images, labels, *, seed, **parameters)
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Coordinate = Annotated[Number, Field(ge=-FARTHEST, le=FARTHEST)]
Word = Annotated[str, Strict(), Field(pattern=r"\S")]
PointsByClass = Annotated[
    dict[Word, Annotated[list[tuple[Coordinate, Coordinate]], Field(min_length=1)]], Field(min_length=1)
]


def _read(kind: Any, value: object, place: str, due: str) -> Any:
    """Return the value as `kind`. Raise a BenchmarkError that says what is `due`."""
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = "".join(f" {part!r}:" for part in first["loc"])
        got = " ".join(str(first["input"]).split())[:80]
        raise BenchmarkError(f"{place}:{where} {first['msg']} (got {got}); {due} is due") from None


def read_points(classes: object, axes: object, place: str) -> Points:
    """Return points with coordinates rounded to a ten-thousandth of the larger extent, or finer.

    Args:
        classes: by name a list of pairs of finite numbers.
        axes: names of both axes; None where they mean nothing.
        place: the measure that returned them, for messages.

    Raises:
        BenchmarkError: anything else, a class without a point, or too many points or classes.
    """
    due = f"by class a list of points (x, y), two finite numbers up to {FARTHEST:g} each,"
    by_class = _read(PointsByClass, classes, place, due)
    extent = max(max(v) - min(v) for v in zip(*(pair for pairs in by_class.values() for pair in pairs), strict=True))
    digits = DIGITS - 1 - math.floor(math.log10(extent)) if extent else DIGITS  # behind the point
    rounded = [
        {"name": name, "points": tuple((round(x, digits) + 0.0, round(y, digits) + 0.0) for x, y in pairs)}
        for name, pairs in by_class.items()
    ]
    words = _read(tuple[Word, Word] | None, axes, f"{place}: 'axes'", "two words, or none where the axes mean nothing,")
    try:
        return Points.model_validate({"classes": rounded, "axes": words})
    except ValidationError as error:
        raise BenchmarkError(f"{place}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None


@dataclass
class Measured:
    """The results of measures, by label.

    `x` has the places of curves; `columns` the evidence, each (n,); `verdicts` those of the images that values count.
    """

    values: dict[str, Value] = field(default_factory=dict)
    x: dict[str, tuple[float, ...]] = field(default_factory=dict)
    columns: dict[str, torch.Tensor] = field(default_factory=dict)
    verdicts: dict[str, Verdicts] = field(default_factory=dict)
    points: dict[str, Points] = field(default_factory=dict)

    def add(self, other: Measured) -> None:
        """Add the results of another measure."""
        for part in fields(self):
            getattr(self, part.name).update(getattr(other, part.name))


def accuracy(label: str, right: torch.Tensor) -> Measured:
    """Return the share of images that are right, (n,) bool."""
    return Measured({label: _share(right)}, {}, {f"{label}: right": right}, {label: _bits(right)})


def certified(measure: MeasureSpec, right: torch.Tensor, radii: torch.Tensor) -> Measured:
    """Return certified accuracy as a curve over the measure's radii (l2, pixels).

    Args:
        right: (n,) bool, whether each clean image is classified correctly.
        radii: (n,) certified l2 radii; an image counts at a radius that its own reaches.
    """
    label, reached = measure.label, [right & (radii >= radius) for radius in measure.radii]
    shares, bits = tuple(map(_share, reached)), tuple(map(_bits, reached))
    return Measured({label: shares}, {label: measure.radii}, {f"{label}: l2": radii}, {label: bits})


def _share(right: torch.Tensor) -> float:
    return int(right.sum()) / len(right)


def _bits(right: torch.Tensor) -> str:
    return "".join("01"[verdict] for verdict in right.int().tolist())


def own(
    function: Measure,
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    measure: MeasureSpec,
    seed: int,
    filled: Mapping[str, object],
) -> Measured:
    """Return the results of a measure that is a function, of the submission's measures.py.

    It returns numbers; curves over its `x`; dicts from class to points, whose axes `axes` may name; and tensors (n,) of one
    value an image, NaN beyond the first `measure.images`.

    Args:
        filled: for a function that takes them: `attention`, the model's attention weights; `training`, the track's training
            images (n, c, h, w) float32 and labels (n,) int64, on the CPU.

    Raises:
        BenchmarkError: it returns something else, a number that is not finite, or neither number nor point.
    """
    torch.manual_seed(seed)
    chosen, place = slice(measure.images), f"measure {measure.measure}"
    returned = function(model, images[chosen].clone(), labels[chosen].clone(), seed=seed, **measure.parameters, **filled)
    if not isinstance(returned, dict) or not returned:
        raise BenchmarkError(f"{place} returned {type(returned).__name__}, not a dict of numbers, lists of numbers or points")
    x = _read(tuple[Number, ...], returned.pop("x", ()), f"{place}: 'x'", "a list of finite numbers")
    axes, measured = returned.pop("axes", None), Measured()
    for key, value in returned.items():
        label = measure.label if key == measure.measure or len(returned) == 1 else f"{measure.label}: {key}"
        if isinstance(value, torch.Tensor):
            measured.columns[f"{measure.label}: {key}"] = _per_image(value, len(images[chosen]), len(images), place)
        elif isinstance(value, dict):
            measured.points[label] = read_points(value, axes, f"{place}: {key!r}")
        elif isinstance(value, list | tuple):
            if len(value) != len(x) or not x:
                raise BenchmarkError(f"{place}: the curve {key!r} has {len(value)} values for {len(x)} places in 'x'")
            measured.values[label] = _read(tuple[Number, ...], value, f"{place}: {key!r}", "a list of finite numbers")
            measured.x[label] = x
        else:
            measured.values[label] = _read(Number, value, f"{place}: {key!r}", "a finite number")
    if axes is not None and not measured.points:
        raise BenchmarkError(f"{place} returned 'axes', which name those of points, and no points")
    if not measured.values and not measured.points:
        raise BenchmarkError(f"{place} returned no number, no list of numbers and no points")
    return measured


def _per_image(value: torch.Tensor, n: int, total: int, place: str) -> torch.Tensor:
    """Return one number an image, float64 (total,), NaN for images that were not measured."""
    if value.shape != (n,):
        raise BenchmarkError(f"{place} returned a tensor of shape {tuple(value.shape)} for {n} images; ({n},) is due")
    rest = torch.full((total - n,), math.nan, dtype=torch.float64)
    return torch.cat([value.detach().cpu().double(), rest])
