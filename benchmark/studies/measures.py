"""What a study measures of one trained network, per image where images are counted."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import nn

from benchmark.evaluation.run_attack import run_attack
from benchmark.results.points import PointClass, Points
from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.specs.study import MeasureSpec, Value, Verdicts
from benchmark.specs.threat import Engine
from benchmark.verdicts.prediction import predict

FARTHEST = 1e12  # from 0
DIGITS = 5  # of the extent, finer than a figure can show

Pair = tuple[float, float]


def read_points(classes: dict[object, object], axes: object, place: str) -> Points:
    """Coordinates rounded to a ten-thousandth of the larger extent, or finer.

    Args:
        classes: by name a list of pairs of finite numbers.
        axes: what both axes mean, two words; None where they mean nothing.
        place: what returned them, for messages.

    Raises:
        BenchmarkError: it is something else, a class without a point, or too many points or classes.
    """
    pairs = {_name(name, place): _pairs(name, found, place) for name, found in classes.items()}
    if not pairs:
        raise BenchmarkError(f"{place} has no class of points; give at least one, such as {{'clean': [(0.5, 1.5)]}}")
    digits = _digits([pair for found in pairs.values() for pair in found])
    rounded = tuple(
        PointClass(name=name, points=tuple((round(x, digits) + 0.0, round(y, digits) + 0.0) for x, y in found))
        for name, found in pairs.items()
    )
    try:
        return Points(classes=rounded, axes=_axes(axes, place))
    except ValidationError as error:
        raise BenchmarkError(f"{place}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None


def _name(name: object, place: str) -> str:
    if not isinstance(name, str) or not name.strip():
        raise BenchmarkError(f"{place}: the class {name!r} is no name; classes of points are named by text")
    return name


def _pairs(name: object, found: object, place: str) -> list[Pair]:
    if not isinstance(found, list | tuple) or not found:
        what = f"a {type(found).__name__}" if not isinstance(found, list | tuple) else "no point"
        raise BenchmarkError(f"{place}: the class {name!r} has {what}; a list of (x, y) is due, one at least")
    for pair in found:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(map(_is_coordinate, pair)):
            raise BenchmarkError(
                f"{place}: the class {name!r} has the point {pair!r}; two finite numbers (x, y), up to {FARTHEST:g}, are due"
            )
    return [(float(x), float(y)) for x, y in found]


def _is_coordinate(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= FARTHEST  # false of NaN


def _digits(pairs: Iterable[Pair]) -> int:
    """Places behind the point."""
    extent = max(max(values) - min(values) for values in zip(*pairs, strict=True))
    return DIGITS - 1 - math.floor(math.log10(extent)) if extent else DIGITS


def _axes(axes: object, place: str) -> tuple[str, str] | None:
    if axes is None:
        return None
    if isinstance(axes, list | tuple) and len(axes) == 2 and all(isinstance(one, str) and one for one in axes):
        return axes[0], axes[1]
    raise BenchmarkError(f"{place}: 'axes' is {axes!r}; two names are due, or none where the axes mean nothing")


PARTS = ("blocks", "attention")  # of a model, each found by the file of its name in benchmark/loading
TRAINING = "training"  # the track's training images (n, c, h, w) float32 and labels (n,) int64, on the CPU
Measure = Callable[..., object]  # (model, images, labels, *, seed, **parameters)
Radii = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass
class Measured:
    """`values` by the measure's label, `x` of those that are curves, evidence by column, each (n,), the images' verdicts
    that values were counted from, and points by label.
    """

    values: dict[str, Value] = field(default_factory=dict)
    x: dict[str, tuple[float, ...]] = field(default_factory=dict)
    columns: dict[str, torch.Tensor] = field(default_factory=dict)
    verdicts: dict[str, Verdicts] = field(default_factory=dict)
    points: dict[str, Points] = field(default_factory=dict)

    def add(self, other: Measured) -> None:
        """What another measure gave."""
        for mine in fields(self):
            getattr(self, mine.name).update(getattr(other, mine.name))


def clean(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, label: str, batch_size: int) -> Measured:
    """Share of images whose true logit is above every other."""
    right = predict(model, images, labels, batch_size).correct
    return Measured({label: _share(right)}, {}, {f"{label}: right": right}, {label: _bits(right)})


def attacked(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    measure: MeasureSpec,
    *,
    batch_size: int,
    checkpoint: Path,
    engine: Engine,
) -> Measured:
    """Share of images right when clean and after the attack; resumes from `checkpoint`."""
    assert measure.attack is not None
    _, after = run_attack(
        model, images, labels, measure.attack,
        batch_size=batch_size, checkpoint=checkpoint, engine=engine,
    )  # fmt: skip
    label, right = measure.label, after.correct
    return Measured({label: _share(right)}, {}, {f"{label}: right": right}, {label: _bits(right)})


def certified(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, measure: MeasureSpec, batch_size: int, radii: Radii
) -> Measured:
    """Share of images right when clean with a certified l2 radius of at least each of the measure's: a curve over them."""
    found = radii(model, images, labels)
    right = predict(model, images, labels, batch_size).correct
    label, reached = measure.label, [right & (found >= radius) for radius in measure.radii]
    shares, bits = tuple(map(_share, reached)), tuple(map(_bits, reached))
    return Measured({label: shares}, {label: measure.radii}, {f"{label}: l2": found}, {label: bits})


def own(
    function: Measure,
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    measure: MeasureSpec,
    seed: int,
    parts: dict[str, Any] | None = None,
) -> Measured:
    """What a function of the submission's measures.py or of benchmark/measures returns: numbers, curves over its `x`, dicts
    from class to points, whose axes `axes` may name, and tensors of one value an image, NaN for those beyond the first
    `measure.images`.

    Args:
        parts: the model's blocks or attention weights, or training images, for a function that takes them (`takes`).

    Raises:
        BenchmarkError: it returns something else, a number that is not finite, or neither number nor point.
    """
    torch.manual_seed(seed)
    given = measure.parameters | (parts or {})
    chosen, place = slice(measure.images), f"measure {measure.measure}"
    found = function(model, images[chosen].clone(), labels[chosen].clone(), seed=seed, **given)
    if not isinstance(found, dict) or not found:
        raise BenchmarkError(
            f"{place} returned {type(found).__name__}, not a dict of numbers, lists of numbers or points"
        )
    measured = _told_apart(found, measure, (len(images[chosen]), len(images)), place)
    if not measured.values and not measured.points:
        raise BenchmarkError(f"{place} returned no number, no list of numbers and no points")
    return measured


def _told_apart(found: dict[str, Any], measure: MeasureSpec, images: tuple[int, int], place: str) -> Measured:
    """What a function returned, by what it is; `images`: those that it got, and all."""
    x = tuple(_number(value, place) for value in found.pop("x", ()))
    axes, measured = found.pop("axes", None), Measured()
    for key, value in found.items():
        label = measure.label if key == measure.measure or len(found) == 1 else f"{measure.label}: {key}"
        if isinstance(value, torch.Tensor):
            measured.columns[f"{measure.label}: {key}"] = _per_image(value, *images, place)
        elif isinstance(value, dict):
            measured.points[label] = read_points(value, axes, f"{place}: {key!r}")
        elif isinstance(value, list | tuple):
            if len(value) != len(x) or not x:
                raise BenchmarkError(f"{place}: the curve {key!r} has {len(value)} values for {len(x)} places in 'x'")
            measured.values[label] = tuple(_number(v, place) for v in value)
            measured.x[label] = x
        else:
            measured.values[label] = _number(value, place)
    if axes is not None and not measured.points:
        raise BenchmarkError(f"{place} returned 'axes', which name those of points, and no points")
    return measured


def _per_image(value: torch.Tensor, n: int, total: int, place: str) -> torch.Tensor:
    """One number an image, float64 (total,): those that were not measured have NaN."""
    if value.shape != (n,):
        raise BenchmarkError(f"{place} returned a tensor of shape {tuple(value.shape)} for {n} images; ({n},) is due")
    rest = torch.full((total - n,), math.nan, dtype=torch.float64)
    return torch.cat([value.detach().cpu().double(), rest])


def versions(measures: Iterable[MeasureSpec]) -> tuple[dict[str, str], dict[str, str]]:
    """Of the packages that measures need: the versions of those that import, and by label why a measure is left out."""
    found, left_out = {}, {}
    for measure in measures:
        if measure.needs:
            try:
                found[measure.needs] = str(getattr(importlib.import_module(measure.needs), "__version__", "unknown"))
            except ImportError as error:
                left_out[measure.label] = f"the package {measure.needs} does not import here ({error})"
    return found, left_out


def parts_taken(function: Measure) -> list[str]:
    """Of PARTS, those that a measure's function takes."""
    return [part for part in PARTS if takes(function, part)]


def takes(function: Measure, name: str) -> bool:
    """Whether a measure's function has this keyword-only parameter, which the harness then fills."""
    known = inspect.signature(function).parameters
    return name in known and known[name].kind is inspect.Parameter.KEYWORD_ONLY


def check_parameters(function: Measure, given: dict[str, Any], place: str) -> None:
    """A BenchmarkError for a parameter that a measure's function does not know or that is missing."""
    parameters = inspect.signature(function).parameters
    known = {n: p for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY and n not in ("seed", TRAINING, *PARTS)}
    for name in given:
        if name not in known:
            raise BenchmarkError(f"{place}: unknown parameter {name!r}{near_miss(name, known)}")
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in given:
            raise BenchmarkError(f"{place}: the parameter {name!r} is missing")


def _share(right: torch.Tensor) -> float:
    return int(right.sum()) / len(right)


def _bits(right: torch.Tensor) -> str:
    return "".join("01"[verdict] for verdict in right.int().tolist())


def _number(value: object, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BenchmarkError(f"{place} returned {value!r} where a finite number is due")
    return float(value)
