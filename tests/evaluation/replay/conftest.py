"""A row that is built and published, to be verified."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_project import Project, built_once


@pytest.fixture(scope="session")
def verified_trained(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The project of tiny_verified.py, run to the end. Not to be changed: see `verified_row`."""
    import tiny_verified  # imports torch, which reads OMP_NUM_THREADS

    return built_once(tmp_path_factory, "verified", tiny_verified.published)


@pytest.fixture
def verified_row(verified_trained: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A copy of it, as working directory; replayed without a sandbox, which test_attacked_images.py has."""
    project = verified_trained.copy(tmp_path / "row")
    monkeypatch.chdir(project.root)
    return project
