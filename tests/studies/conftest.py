"""What several tests of studies start from."""

from __future__ import annotations

import pytest
import tiny_linear_row
import tiny_study
from tiny_project import Project, edit

from benchmark.specs import submissions, tracks


@pytest.fixture
def loading(tmp_path, monkeypatch):
    """The same study alone, in place of all submissions: quicker, for what runs nothing."""
    made = Project(tmp_path)
    for folder, file, text in (
        ("submissions/Tiny2026Linear", "submission.yaml", tiny_linear_row.SUBMISSION),
        ("tracks", "tiny.yaml", tiny_linear_row.TRACK),
    ):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / file).write_text(text)
    monkeypatch.setattr(submissions, "FOLDER", tmp_path / "submissions")
    monkeypatch.setattr(tracks, "FOLDER", tmp_path / "tracks")
    tiny_study.add(made)
    return made


@pytest.fixture
def studied(linear_new):
    """A project whose linear model has a study, as working directory. Its networks run without a sandbox: see `walled`."""
    tiny_study.add(linear_new)
    edit("params.yaml", "wall: full", "wall: none")
    return linear_new


@pytest.fixture
def walled(studied):
    """Puts its networks into a sandbox."""
    edit(studied.root / "params.yaml", "wall: none", "wall: full")
