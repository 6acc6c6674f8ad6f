"""Random searches for what breaks a bound: the first draws are slow tests, the many others long ones."""

from __future__ import annotations

from typing import Any

import pytest


def draws(first: list[Any] | range, others: list[Any] | range) -> list[Any]:
    """Values of a parameter: .ci/run tries the first, the workflow's own jobs all."""
    return [*first, *(pytest.param(one, marks=pytest.mark.long) for one in others)]
