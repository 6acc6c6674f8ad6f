"""`rvb doctor`: what it finds, and when its exit status is 1."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import cluster_project
import command
import pytest
from tiny_project import Project

from benchmark.commands import doctor


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project that passes. Not to be changed: see `copied`."""
    return cluster_project.new(tmp_path_factory.mktemp("doctor") / "project")


@pytest.fixture(autouse=True)
def root(ready, monkeypatch) -> Path:
    monkeypatch.chdir(ready.root)
    monkeypatch.setattr(doctor, "ROOM", 0.0)  # whatever the machine of the tests has
    return ready.root


@pytest.fixture
def copied(ready, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(ready.copy(tmp_path / "project").root)


def doctor_says(*arguments: str) -> tuple[dict[str, str], int]:
    """Each check's verdict and words by its name, and the exit status."""
    result = command.rvb("doctor", *arguments)
    lines = [line.partition(": ") for line in result.stdout.splitlines()]
    return {head[6:]: f"{head[:4].strip()} {words}" for head, _, words in lines}, result.exit_code


@pytest.mark.slow
def test_a_ready_checkout_passes(root) -> None:
    checks, status = doctor_says("--engine", "ray")
    assert status == 0, checks
    assert checks["pipeline"] == "ok fits the submissions"
    assert checks["locks"] == "ok whole"
    assert checks["DVC remote"] == f"ok store, {root.parent / 'remote'}"


@pytest.mark.slow
@pytest.mark.usefixtures("copied")
def test_what_an_engine_needs_is_checked_for_that_engine_alone(monkeypatch) -> None:
    Path(".dvc/config").write_text("[core]\n")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    plain, ray, slurm = doctor_says(), doctor_says("--engine", "ray"), doctor_says("--engine", "slurm")
    assert ray[0]["DVC remote"].startswith("FAIL no default DVC remote carries the results")
    assert slurm[0]["SLURM"].startswith("FAIL no sbatch here")
    assert [status for _, status in (plain, ray, slurm)] == [0, 1, 1]
    unknown = command.rvb("doctor", "--engine", "dask")
    assert (unknown.exit_code, "'dask' is not one of" in unknown.output) == (2, True)


@pytest.mark.usefixtures("copied")
def test_broken_locks_pipelines_and_submissions_are_named() -> None:
    Path("pipelines/tiny/_data/dvc.lock").write_text("schema: '2.0'\nsta")
    assert doctor_says()[0]["locks"].startswith("note pipelines/tiny/_data/dvc.lock was cut short")
    shutil.rmtree("pipelines/tiny/Tiny2026Linear-small")
    assert doctor_says()[0]["pipeline"].startswith("note 1 of the generated files no longer fits")
    Path("submissions/Tiny2026Linear/submission.yaml").write_text("name: [")
    checks, status = doctor_says()
    assert checks["pipeline"].startswith("note submissions/Tiny2026Linear/submission.yaml: not valid YAML")
    assert status == 0  # the other rows are built
    Path(".dvc/tmp").mkdir(exist_ok=True)
    Path(".dvc/tmp/rwlock").write_text("{")
    checks, status = doctor_says()
    assert checks["locks"].startswith("FAIL .dvc/tmp/rwlock is cut short")
    assert status == 1


def test_machine_and_packages_are_checked(monkeypatch, tmp_path) -> None:
    (tmp_path / "constraints.txt").write_text("# as published\ntorch==0.0.1\n")
    monkeypatch.setattr(doctor, "CONSTRAINTS", tmp_path / "constraints.txt")
    monkeypatch.setattr("benchmark.runtime.arithmetic._has_avx2", lambda: False)
    checks, status = doctor_says()
    assert checks["packages"].startswith("note torch ")
    assert checks["arithmetic"].startswith("note no x86-64 with AVX2")
    assert status == 0
    monkeypatch.setattr(doctor, "ROOM", 1e9)
    checks, status = doctor_says()
    assert (checks["room"][:5], status) == ("FAIL ", 1)
    monkeypatch.setattr(doctor, "ROOM", 0.0)
    required = ["torch>=2", "no-such-package>=1", "graphviz; extra == 'crown'"]
    monkeypatch.setattr(doctor, "requires", lambda name: required)
    checks, status = doctor_says()
    assert checks["packages"].startswith("FAIL no-such-package not installed; run: pip install")
    assert status == 1


@pytest.mark.usefixtures("copied")
def test_the_sandbox_is_checked_before_any_work(monkeypatch) -> None:
    settings = Path("params.yaml")
    for wall, parts, words, status in (
        ("full", "landlock seccomp namespaces limits", "ok landlock, seccomp, namespaces, limits", 0),
        ("full", "landlock seccomp limits", "ok landlock, seccomp, limits; no namespaces", 0),
        ("full", "seccomp limits", "FAIL this machine has no landlock", 1),
        ("weak", "seccomp limits", "note seccomp, limits, without landlock", 0),
        ("none", "seccomp limits", "note none", 0),
    ):
        settings.write_text(re.sub(r"^wall: \w+", f"wall: {wall}", settings.read_text(), flags=re.MULTILINE))
        monkeypatch.setattr("benchmark.sandbox.confinement.available", lambda parts=parts: tuple(parts.split()))
        checks, ended = doctor_says()
        assert checks["sandbox"].startswith(words)
        assert ended == status
