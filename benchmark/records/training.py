"""The result of a training."""

from __future__ import annotations

from pydantic import Field, JsonValue

from benchmark.specs.base import Frozen
from benchmark.specs.threat import AttackSpec


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
    """What a step before the first epoch reported."""

    name: str
    history: dict[str, JsonValue]


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
