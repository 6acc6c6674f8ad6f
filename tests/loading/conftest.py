"""Submissions of one file, written by a test."""

from __future__ import annotations

import pytest
from torch import nn

from benchmark.loading import methods, submissions


@pytest.fixture
def method(tmp_path, monkeypatch, request):
    """Writes the method.py of the submission Tiny2026Own, the test module's METHOD with another end, and builds its model."""
    monkeypatch.setattr(submissions, "FOLDER", tmp_path / "submissions")
    folder = tmp_path / "submissions/Tiny2026Own"
    folder.mkdir(parents=True)

    def write(end: str = "", text: str = request.module.METHOD) -> nn.Module:
        (folder / "method.py").write_text(text + end)
        return methods.method("Tiny2026Own").build()

    return write
