"""`rvb doctor`: what it finds, and when its exit status is 1."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import cluster_project
import command
import pytest

from benchmark.commands import doctor


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cluster_project.new(tmp_path_factory.mktemp("doctor") / "project").root


@pytest.fixture
def root(made, tmp_path, monkeypatch) -> Path:
    shutil.copytree(made, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setattr(doctor, "ROOM", 0.0)  # whatever the machine of the tests has
    config = Path(".dvc/config")
    config.write_text(config.read_text().replace(str(made.parent / "remote"), str(tmp_path / "remote")))
    return tmp_path / "project"


def doctor_says(*arguments: str) -> tuple[dict[str, str], int]:
    """Each check's verdict and words by its name, and the exit status."""
    result = command.rvb("doctor", *arguments)
    lines = [line.partition(": ") for line in result.stdout.splitlines()]
    return {head[6:]: f"{head[:4].strip()} {words}" for head, _, words in lines}, result.exit_code


def test_a_ready_checkout_passes(root) -> None:
    found, status = doctor_says("--engine", "ray")
    assert status == 0, found
    assert found["pipeline"] == "ok fits the submissions"
    assert found["locks"] == "ok whole"
    assert found["DVC remote"] == f"ok store, {root.parent / 'remote'}"


def test_what_an_engine_needs_is_checked_for_that_engine_alone(root, monkeypatch) -> None:
    Path(".dvc/config").write_text("[core]\n")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    plain, ray, slurm = doctor_says(), doctor_says("--engine", "ray"), doctor_says("--engine", "slurm")
    assert ray[0]["DVC remote"].startswith("FAIL no default DVC remote carries the results")
    assert slurm[0]["SLURM"].startswith("FAIL no sbatch here")
    assert [status for _, status in (plain, ray, slurm)] == [0, 1, 1]
    unknown = command.rvb("doctor", "--engine", "dask")
    assert unknown.exit_code == 2
    assert "'dask' is not one of" in unknown.output


def test_locks_cut_short_are_mended_and_a_list_of_commands_cut_short_is_not(root) -> None:
    Path("pipelines/tiny/_data/dvc.lock").write_text("schema: '2.0'\nsta")
    assert doctor_says()[0]["locks"].startswith("note pipelines/tiny/_data/dvc.lock was cut short")
    Path(".dvc/tmp").mkdir(exist_ok=True)
    Path(".dvc/tmp/rwlock").write_text("{")
    found, status = doctor_says()
    assert found["locks"].startswith("FAIL .dvc/tmp/rwlock is cut short")
    assert status == 1


def test_a_submission_that_does_not_load_and_a_stale_pipeline(root) -> None:
    shutil.rmtree("pipelines/tiny/Tiny2026Linear-small")
    assert doctor_says()[0]["pipeline"].startswith("note 1 of the generated files no longer fits")
    Path("submissions/Tiny2026Linear/submission.yaml").write_text("name: [")
    found, status = doctor_says()
    assert found["pipeline"].startswith("note submissions/Tiny2026Linear/submission.yaml: not valid YAML")
    assert status == 0  # the other rows are built


def test_packages_of_other_versions_are_a_note_and_lost_ones_break(root, monkeypatch) -> None:
    Path("constraints.txt").write_text("# as published\ntorch==0.0.1\n")
    assert doctor_says()[0]["packages"].startswith("note torch ")
    required = ["torch>=2", "no-such-package>=1", "graphviz; extra == 'crown'"]
    monkeypatch.setattr(doctor, "requires", lambda name: required)
    found, status = doctor_says()
    assert found["packages"].startswith("FAIL no-such-package not installed; run: pip install")
    assert status == 1


def test_a_processor_without_avx2_and_a_full_disk(root, monkeypatch) -> None:
    monkeypatch.setattr("benchmark.runtime.arithmetic._has_avx2", lambda: False)
    monkeypatch.setattr(doctor, "ROOM", 1e9)
    found, status = doctor_says()
    assert found["arithmetic"].startswith("note no x86-64 with AVX2")
    assert found["room"].startswith("FAIL ")
    assert status == 1


def test_what_holds_submissions_is_said_before_any_work(root, monkeypatch) -> None:
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
        found, ended = doctor_says()
        assert found["sandbox"].startswith(words)
        assert ended == status
