"""The environment in which DVC's stages run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmark.pipeline import dvc


@pytest.mark.parametrize("forbidden", [True, False])
def test_bytecode_that_may_not_stand_beside_sources_is_kept_under_work(forbidden, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", forbidden)
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"):
        monkeypatch.delenv(name, raising=False)
    if forbidden:
        monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    Path("module.py").write_text("X = 1\n")
    subprocess.run([sys.executable, "-c", "import module"], env=dvc.environment(), check=True)
    beside, kept = ([*place.rglob("module.*.pyc")] for place in (Path("__pycache__"), dvc.BYTECODE))
    assert (len(beside), len(kept)) == ((0, 1) if forbidden else (1, 0))
