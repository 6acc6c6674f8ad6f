"""A track's images: their source, and which of them count."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from benchmark.specs.base import Frozen


class DataSpec(Frozen):
    """The source of a track's images: the reader `benchmark/data/<source>.py`, and the split.

    `test` is the number of images drawn for testing; None for a source with a test split of its own. `sha256` pins
    the prepared images and labels of each split; `images` is the number in each pool, in all or by class (in no dump).
    """

    source: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    dataset: str | None = None  # the data set, of a source with several
    path: str | None = None  # the folder of the source's files, if it reads any
    seed: int = 0  # of the split
    validation: int = Field(gt=0)  # images, for the selection of epochs
    test: int | None = Field(default=None, gt=0)
    shape: tuple[int, int, int]  # c, h, w
    classes: int = Field(gt=1)
    sha256: dict[Literal["train", "validation", "test"], str] = Field(default={})
    images: dict[Literal["all", "train", "test"], int | tuple[int, ...]] = Field(default={}, exclude=True)


class EvaluationSpec(Frozen):
    """The test images that count: `images` of them, drawn once by `seed`, the same for every model.

    If `attacked` is given, only the first `attacked` images are attacked. Robust accuracy counts those, clean and
    certified accuracy all.
    """

    images: int = Field(gt=0)
    attacked: int | None = Field(default=None, gt=0)
    seed: int = 0
    batch_size: int = Field(default=100, gt=0)  # images in one call of the model, at most

    @model_serializer(mode="wrap")
    def _as_published(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out `attacked` if it is None: the rules of older tracks keep their JSON."""
        content: dict[str, Any] = serialise(self)
        if self.attacked is None:
            del content["attacked"]
        return content

    @model_validator(mode="after")
    def _first_batches(self) -> EvaluationSpec:
        if self.attacked and (self.attacked > self.images or self.attacked % self.batch_size):
            raise ValueError(
                f"attacked has to be a multiple of batch_size {self.batch_size}, so that the clean pass has the same "
                f"batches, and at most images, {self.images}; {self.attacked} is not"
            )
        return self
