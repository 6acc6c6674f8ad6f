"""Shared fixtures: the repository's root as working directory, and projects with a tiny track."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tiny_project import ROOT, Project

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code's paths are relative to the repository's root."""
    monkeypatch.chdir(ROOT)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project without submissions."""
    return Project.new(tmp_path / "project")


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with two submissions, run side by side to the end. Not to be changed: see `built`."""
    project = Project.new(tmp_path_factory.mktemp("finished") / "project")
    project.add("Tiny2026Net")
    project.add("Tiny2026Twin")
    project.rvb("repro", "--track", "tiny", "--jobs", "2")
    return project


@pytest.fixture
def built(finished: Project, tmp_path: Path) -> Project:
    """A copy of the finished project."""
    return finished.copy(tmp_path / "built")
