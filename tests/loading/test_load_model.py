"""`benchmark.load_model`: a trained row for a user's own program."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_linear_row import NAMES, ROW
from tiny_project import ROOT

import benchmark
from benchmark.runtime.errors import BenchmarkError

TRACK, NAME = NAMES


def test_it_is_the_trained_model_ready_to_use_from_anywhere_in_the_checkout(linear_row, monkeypatch) -> None:
    weights = load_file(ROW / "train/model.safetensors")
    monkeypatch.chdir(linear_row.root / "submissions")
    before = Path.cwd()
    model = benchmark.load_model(NAME, track=TRACK)
    assert Path.cwd() == before
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    images = torch.rand(3, 1, 8, 8)
    expected = images.flatten(1) @ weights["1.weight"].T + weights["1.bias"]
    torch.testing.assert_close(model(images), expected)


def test_a_row_that_is_not_built_names_the_command_that_builds_it(linear_row) -> None:
    (ROW / "train/model.safetensors").unlink()
    words = f"{NAME} is not built on tiny; run `rvb repro {NAME} --track tiny`"
    with pytest.raises(BenchmarkError, match=re.escape(words)):
        benchmark.load_model(NAME, track=TRACK)
    with pytest.raises(BenchmarkError, match="did you mean 'small'"):
        benchmark.load_model("Tiny2026Linear-smal", track=TRACK)


def test_outside_a_checkout_it_says_where_to_stand(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BenchmarkError, match="inside a checkout"):
        benchmark.load_model(NAME)


def test_the_package_itself_imports_nothing() -> None:
    code = (
        "import sys, benchmark\n"
        "assert [name for name in sys.modules if name.startswith('benchmark')] == ['benchmark']\n"
        "assert 'torch' not in sys.modules\n"
        "assert not hasattr(benchmark, 'load_modle')\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert benchmark.load_model.__module__ == "benchmark.loading.load_model"
