"""Values of a parameter for searches and sweeps: the first ones run often, the many others in the workflow's own jobs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings


def draws(first: list[Any] | range, others: list[Any] | range) -> list[Any]:
    """Values of a slow test's parameter: .ci/run tries the first, the workflow's own jobs all."""
    return [*first, *(pytest.param(one, marks=pytest.mark.long) for one in others)]


def few(first: list[Any] | range, others: list[Any] | range) -> list[Any]:
    """Values of a fast test's parameter, or of several: every run tries the first, the workflow's own jobs all."""
    cases = (one if isinstance(one, tuple) else (one,) for one in others)
    return [*first, *(pytest.param(*case, marks=[pytest.mark.slow, pytest.mark.long]) for case in cases)]


def examples(many: int) -> int:
    """How many examples hypothesis tries: `many` in its profile `nightly`, else a fifth, at least 10."""
    return many if settings.get_current_profile_name() == "nightly" else max(10, many // 5)
