"""Pictures of a model: grids of images."""

from __future__ import annotations

from pydantic import Field

from benchmark.specs.base import Frozen


class Picture(Frozen):
    """A PNG file of the record's folder `pictures`, with title, alternative text and caption."""

    file: str = Field(pattern=r"^[a-z0-9_]+\.png$")
    sha256: str
    title: str
    alt: str
    caption: str
