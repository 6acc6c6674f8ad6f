"""params.yaml, read by its rules."""

from __future__ import annotations

import pytest

from benchmark.loading.run_settings import run_settings
from benchmark.runtime.errors import BenchmarkError


def test_unknown_keys_in_params_are_refused(tmp_path, monkeypatch) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("train: {device: cpu, precison: 16-mixed}\n")
    monkeypatch.setattr("benchmark.loading.run_settings.PARAMS", path)
    with pytest.raises(BenchmarkError, match=r"unknown key 'train\.precison'; did you mean 'precision'"):
        run_settings()
