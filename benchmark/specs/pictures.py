"""Which pictures of a model a track asks for.

After Debenedetti 2022 (Figures 11 to 14): the perturbations that PGD finds, and what a model sees in its classes.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from benchmark.specs.base import Frozen


class PicturesSpec(Frozen):
    """PGD of `steps` steps: against the first `images` evaluation images in the Linf ball `eps`, and, from as many images
    of noise, towards random classes in the l2 ball of each of `radii`. Pixels of [0, 1].
    """

    images: int = Field(default=10, gt=0, le=32)
    eps: float = Field(gt=0, le=1)
    radii: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] = Field(default=(), max_length=4)
    steps: int = Field(default=100, gt=0)
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _distinct(self) -> PicturesSpec:
        if len({f"{radius:g}" for radius in self.radii}) < len(self.radii):
            raise ValueError("a radius stands twice; give each once")
        return self
