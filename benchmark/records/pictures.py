"""Pictures of a model: grids of images, with what is needed to read them."""

from __future__ import annotations

from pydantic import Field

from benchmark.specs.base import Frozen


class Picture(Frozen):
    """A grid of images, a PNG file of the record's folder `pictures`, with what is needed to read it."""

    file: str = Field(pattern=r"^[a-z0-9_]+\.png$")
    sha256: str
    title: str
    alt: str
    caption: str
