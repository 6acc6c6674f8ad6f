"""Points of named classes in the plane, such as t-SNE of clean and of adversarial features."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from benchmark.specs.base import Frozen

MOST = 5_000  # points in all, so that pages and published files stay small
CLASSES = 20  # that marks can tell apart without colour

Coordinate = Annotated[float, Field(allow_inf_nan=False)]


class PointClass(Frozen):
    """The points (x, y) of one class. In JSON they are one line of text, `x,y x,y`."""

    name: str = Field(min_length=1)
    points: Annotated[
        tuple[tuple[Coordinate, Coordinate], ...],
        BeforeValidator(lambda text: [pair.split(",") for pair in text.split()] if isinstance(text, str) else text),
        PlainSerializer(lambda points: " ".join(f"{x!r},{y!r}" for x, y in points), str, when_used="json"),
    ] = Field(min_length=1)


class Points(Frozen):
    """Classes in the order of their marks. `axes` names both axes; None where they mean nothing, as for t-SNE."""

    classes: tuple[PointClass, ...] = Field(min_length=1)
    axes: tuple[str, str] | None = None

    @property
    def count(self) -> int:
        return sum(len(points.points) for points in self.classes)

    @model_validator(mode="after")
    def _fits(self) -> Points:
        if self.count > MOST:
            raise ValueError(f"{self.count} points are more than {MOST:,} in all; take fewer images")
        if len(self.classes) > CLASSES:
            raise ValueError(f"{len(self.classes)} classes are more than the {CLASSES} that marks can tell apart")
        return self
