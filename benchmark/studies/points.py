"""Points that a measure returns: a dict from class to its (x, y), checked and rounded."""

from __future__ import annotations

import math
from collections.abc import Iterable

from pydantic import ValidationError

from benchmark.results.points import PointClass, Points
from benchmark.runtime.errors import BenchmarkError

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
