"""The result of a training."""

from __future__ import annotations

import json
from collections.abc import Iterator

from pydantic import Field, JsonValue, field_validator

from benchmark.specs.base import Frozen
from benchmark.specs.threat import AttackSpec

LONGEST_HISTORY = 2**20  # characters of JSON


class Overfitting(Frozen):
    """Whether training overfitted catastrophically (Wong et al. 2020): the network is robust to the training attack alone.

    Measured on validation images after each epoch. An epoch counts when, after the warm-up, the accuracy under the training
    attack is more than `gap` above that under it and PGD together. `trained` and `pgd` are the two at the selected epoch.
    """

    found: bool
    epochs: tuple[int, ...]  # the epochs that count
    trained: float
    pgd: float
    gap: float
    images: int
    probe: AttackSpec

    @property
    def words(self) -> str:
        """The result in one line."""
        share = f"{self.trained:.2f} right under the attack trained on, {self.pgd:.2f} under PGD too"
        where = f"at the selected epoch {share} ({self.images} validation images)"
        if not self.found:
            return f"no catastrophic overfitting: {where}"
        some = ", ".join(map(str, self.epochs[:5])) + (" and more" if len(self.epochs) > 5 else "")
        return f"CATASTROPHIC OVERFITTING in epochs {some}: {where}"


class Preparation(Frozen):
    """The history that a preparation reported (training/preparation.py)."""

    name: str
    history: dict[str, JsonValue]

    @field_validator("history")
    @classmethod
    def _shown(cls, history: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """Refuse numbers that are not finite, text that is not printable, and more than `LONGEST_HISTORY`."""
        if len(json.dumps(history, allow_nan=False)) > LONGEST_HISTORY or not all(map(str.isprintable, texts(history))):
            raise ValueError(f"should have printable text and at most {LONGEST_HISTORY} characters of JSON")
        return history


class TrainingResult(Frozen):
    epochs: int
    selected_epoch: int
    selected_by: str
    validation_score: float
    init_sha256: str | None = None  # of the weights that training started from, where it was from another row's
    prepared: tuple[Preparation, ...] = ()  # before the first epoch
    overfitting: Overfitting | None = None  # where training was against an attack
    seed: int
    device: str
    precision: str
    tf32: bool = Field(default=False, exclude_if=lambda tf32: not tf32)
    compile: bool = Field(default=False, exclude_if=lambda compiles: not compiles)
    processes: int = Field(default=1, ge=1, exclude_if=lambda processes: processes == 1)  # that shared each batch


def texts(value: JsonValue) -> Iterator[str]:
    """Yield the strings of a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from texts(item)
