"""The certificate of a variant."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from benchmark.specs.base import Frozen


def _sound(name: str) -> str:
    if name.startswith("unsound"):
        raise ValueError(f"{name!r} holds published formulas that are no bounds; nothing can be certified by it")
    return name


CertificateName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$"), AfterValidator(_sound)]


class CertificateSpec(Frozen):
    """The certificate of a variant: the file `benchmark/certificates/<name>.py`, and its parameters."""

    name: CertificateName
    parameters: dict[str, int | float] = Field(default={})
