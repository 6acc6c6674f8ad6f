"""What a submission asks for on one track, whether or not any of it was run: its paper, its claims, its studies."""

from __future__ import annotations

from pydantic import Field

from benchmark.specs.base import Frozen
from benchmark.specs.study import Study
from benchmark.specs.submission import Claim, Paper


class DeclaredPaper(Frozen):
    """A submission with a row or a study on the track. `studies` by name, those over a row's seeds among them."""

    summary: str
    paper: Paper
    claims: tuple[Claim, ...] = ()
    studies: dict[str, Study] = Field(default={})
