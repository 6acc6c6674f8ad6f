"""Two rows of a linear model, run by `rvb repro --jobs 2`: what a run on many machines has to give, to the byte."""

from __future__ import annotations

import re
from pathlib import Path

import cluster_project
import pytest
from cluster_project import OTHER
from counted_stages import Counted
from tiny_project import Project


@pytest.fixture(scope="session")
def counting(tmp_path_factory) -> Counted:
    """Counts the stages of all the projects here; one a worker of the run, whose tests each begin by clearing it."""
    return Counted(tmp_path_factory.mktemp("counted"))


@pytest.fixture(scope="session")
def with_data(tmp_path_factory, counting) -> Project:
    """Two rows with their data and nothing else, committed. Not to be changed."""
    project = cluster_project.new(tmp_path_factory.mktemp("committed") / "project", OTHER)
    counting.watch(project)
    cluster_project.commit(project)
    project.run("dvc", "repro", "-s", "pipelines/tiny/_data/dvc.yaml")
    return project


@pytest.fixture(scope="session")
def serial(with_data, tmp_path_factory) -> Project:
    """The same, brought up to date. Not to be changed."""
    project = with_data.copy(tmp_path_factory.mktemp("serial") / "project")
    project.rvb("repro", "--track", "tiny", "--jobs", "2")
    return project


@pytest.fixture
def counted(counting, serial) -> Counted:
    """Nothing was counted yet."""
    counting.clear()
    return counting


@pytest.fixture
def cluster(with_data, counted, tmp_path: Path, monkeypatch) -> Project:
    """A project with its data, and a remote and checkouts of its own beside it."""
    found = with_data.copy(tmp_path / "project")
    config = found.root / ".dvc/config"
    config.write_text(re.sub("url = .*", f"url = {tmp_path / 'remote'}", config.read_text()))
    monkeypatch.setenv("RVB_CHECKOUTS", str(tmp_path / "checkouts"))
    return found
