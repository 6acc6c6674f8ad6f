"""The base of every value that passes between parts: frozen, typed, to and from JSON."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from benchmark.runtime import files


class Frozen(BaseModel):
    """A value that cannot change and that refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def to_json(record: BaseModel) -> str:
    """Canonical JSON: sorted keys, so equal records are equal bytes."""
    return files.to_json(record.model_dump(mode="json")).decode()
