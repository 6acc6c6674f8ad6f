"""Shared fixtures: the repository's root as working directory, and projects with a tiny track."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from tiny_project import ROOT, Project, built_once

from benchmark.runtime import arithmetic
from benchmark.runtime.errors import BenchmarkError

os.environ.setdefault("OMP_NUM_THREADS", "1")
# as stages do, before anything imports torch; native for tests of what only a processor's own kernels keep, and where a
# plugin of pytest has imported what reads it
EARLY = [name for name in arithmetic.READ_AT_IMPORT if name in sys.modules and arithmetic.in_force() == "native"]
arithmetic.fix("native" if EARLY or os.environ.get("TEST_ARITHMETIC") == "native" else "portable")

# `--hypothesis-profile nightly`, as .ci/nightly runs it: searched.examples tries all that a search has
settings.register_profile("nightly", deadline=None)


def pytest_report_header() -> str:
    """Report the arithmetic of this run: in any other than portable, tests of exact bytes may fail."""
    why = f", since a pytest plugin imported {' and '.join(EARLY)} first; tests of exact bytes may fail" if EARLY else ""
    return f"arithmetic: {arithmetic.in_force()}{why}"


def pytest_configure() -> None:
    from benchmark.runtime import kernels  # it imports torch

    kernels.replace()


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is slow
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all cases of a `sweep` slow but the first."""
    tried = set()
    for item in items:
        test = item.nodeid.partition("[")[0]
        if item.get_closest_marker("sweep"):
            if test in tried:
                item.add_marker(pytest.mark.slow)
            tried.add(test)


@pytest.fixture(autouse=True)
def _in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to the repository's root: the code's paths are relative to it."""
    monkeypatch.chdir(ROOT)


@pytest.fixture(autouse=True)
def _errors_have_one_line() -> Iterator[None]:
    """Check that every BenchmarkError of the test has one line, whoever catches it."""
    texts: list[str] = []

    def note(self: BenchmarkError, *arguments: object) -> None:
        texts.extend(map(str, arguments))
        Exception.__init__(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BenchmarkError, "__init__", note)
        yield
    assert not [text for text in texts if "\n" in text]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project without submissions."""
    return Project.new(tmp_path / "project")


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return a project with two submissions, one hardly trained, run side by side to the end. Not to be changed: see
    `built`.
    """

    def build(root: Path) -> Project:
        project = Project.new(root)
        project.add("Tiny2026Net")
        project.add("Tiny2026Twin", epochs=1)
        project.rvb("repro", "--track", "tiny", "--jobs", "2")
        return project

    return built_once(tmp_path_factory, "finished", build)


@pytest.fixture
def built(finished: Project, tmp_path: Path) -> Project:
    """Return a copy of the finished project."""
    return finished.copy(tmp_path / "built")


@pytest.fixture(scope="session")
def linear_trained(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return a project with a trained row of a linear model, and its suite `papers`. Not to be changed: see `linear_row`."""
    import tiny_linear_row  # imports torch, which reads OMP_NUM_THREADS

    return built_once(tmp_path_factory, "linear", tiny_linear_row.trained)


@pytest.fixture
def linear_row(linear_trained: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Change to a copy of it. What the probes break does not count, so that the attacks' share is seen."""
    project = linear_trained.copy(tmp_path / "row")
    monkeypatch.chdir(project.root)
    monkeypatch.setattr("benchmark.evaluation.evidence.probed", lambda _: {})
    return project


@pytest.fixture
def linear_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Change to a project with a submission of the linear model, not yet run."""
    import tiny_linear_row

    project = tiny_linear_row.new(tmp_path / "project")
    monkeypatch.chdir(project.root)
    return project
