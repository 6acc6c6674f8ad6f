"""How every row of a track is smoothed."""

from __future__ import annotations

from pydantic import Field, model_validator

from benchmark.specs.base import Frozen


class SmoothingSpec(Frozen):
    """How every row of a track is smoothed: noise of deviation `sigma` (pixels), `n0` samples to choose the class, at most
    `n` to bound its probability, which are looked at `looks` times while they are drawn. For each image, the radius is wrong
    with probability at most `alpha`.
    """

    sigma: float = Field(gt=0, allow_inf_nan=False)
    n0: int = Field(gt=0)
    n: int = Field(gt=0)
    looks: int = Field(default=1, gt=0, le=32)
    alpha: float = Field(gt=0, lt=1)
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _looks_fit(self) -> SmoothingSpec:
        if self.n < 2 ** (self.looks - 1):
            raise ValueError(f"n {self.n} cannot be halved for {self.looks} looks; give fewer looks or a larger n")
        return self
