"""torch as every stage configures it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmark.runtime import torch_setup


@pytest.mark.parametrize(
    ("most", "calls"),
    [(2**30, [(-3, 2**30), (-1, 2**30)]), (2**25, [(-3, 2**30), (-3, 2**25), (-1, 2**30)]), (0, [(-3, 2**30), (-3, 2**25)])],
)
def test_memory_is_kept_as_far_as_the_c_library_lets_it(most, calls, monkeypatch) -> None:
    """The second threshold alone switches off the first one's own growth, and a pass is slower than by default."""
    made: list[tuple[int, int]] = []

    def mallopt(name: int, size: int) -> int:
        made.append((name, size))
        return int(name == torch_setup.TRIM_THRESHOLD or size <= most)

    monkeypatch.setattr(torch_setup.ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=mallopt))
    torch_setup.set_up("cpu")
    assert made == calls


def test_a_c_library_without_the_setting_is_left_as_it_is(monkeypatch) -> None:
    monkeypatch.setattr(torch_setup.ctypes, "CDLL", lambda _: SimpleNamespace())
    assert torch_setup.set_up("cpu").type == "cpu"
