"""The base of every value that passes between rooms: frozen, typed, to and from JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from pydantic import BaseModel, ConfigDict

from benchmark.runtime import files

T = TypeVar("T")


class Frozen(BaseModel):
    """An immutable value that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def repeated(values: Iterable[T]) -> T | None:
    """Return the first value that is given more than once, or None."""
    seen: list[T] = []
    for value in values:
        if value in seen:
            return value
        seen.append(value)
    return None


def to_json(record: BaseModel) -> str:
    """Return canonical JSON: keys are sorted, so equal records are equal bytes."""
    return files.to_json(record.model_dump(mode="json")).decode()
