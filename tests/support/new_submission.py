"""What `rvb new` writes, in a folder of submissions of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmark.commands.submit import write_submission
from benchmark.specs import submissions

NAME = "Doe2026Tiny"


def write(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes `folder` the folder of submissions, with one new submission; its own folder."""
    monkeypatch.setattr(submissions, "FOLDER", folder)
    write_submission(NAME)
    return folder / NAME
