"""The base of every value that passes between parts: frozen, typed, to and from JSON. Imports nothing local."""

from __future__ import annotations

import json

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """A value that cannot change and that refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def to_json(record: BaseModel) -> str:
    """Canonical JSON: sorted keys, so equal records are equal bytes."""
    return json.dumps(record.model_dump(mode="json"), indent=1, sort_keys=True, allow_nan=False) + "\n"
