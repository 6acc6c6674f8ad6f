"""What becomes of an order whose task Ray ended by an error; without Ray."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmark.pipeline.cluster import site
from benchmark.pipeline.cluster.ray_engine import Ray


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, text: str, cause: Exception) -> None:
        super().__init__(text)
        self.cause = cause


def engine(error: Exception) -> Ray:
    def get(_: object) -> None:
        raise error

    found = Ray.__new__(Ray)
    found.ray = SimpleNamespace(get=get, exceptions=SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError))
    return found


@pytest.mark.parametrize(
    ("error", "words", "lost"),
    [
        (RayError("The node died."), "The node died.", True),
        (RayTaskError("Traceback\nRayError: the actor died", RayError("x")), "RayError: the actor died", True),
        (
            RayTaskError("Traceback\nbenchmark.pipeline.cluster.site.Unmanned: no site on x", site.Unmanned("x")),
            "no site on x",
            True,
        ),
        (RayTaskError("Traceback\nRuntimeError: no such order", RuntimeError("x")), "no such order", False),
    ],
)
def test_what_a_machine_did_is_tried_again_and_what_the_code_did_is_not(error, words, lost) -> None:
    answer = engine(error)._answer("reference")
    assert (answer.error, answer.lost) == (words, lost)
