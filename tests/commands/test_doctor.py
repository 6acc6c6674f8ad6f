"""`rvb doctor`: what it finds, and when its exit status is 1."""

from __future__ import annotations

import shutil
from pathlib import Path

import cluster_project
import pytest
from typer.testing import CliRunner, Result

from benchmark.commands import doctor
from benchmark.commands.main import app


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


def rvb(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *arguments])


def line(result: Result, name: str) -> str:
    return next(one for one in result.stdout.splitlines() if one[6:].startswith(f"{name}: "))


def test_a_ready_checkout_passes(root) -> None:
    found = rvb("--engine", "ray")
    assert found.exit_code == 0, found.stdout
    assert line(found, "pipeline") == "ok    pipeline: fits the submissions"
    assert line(found, "locks") == "ok    locks: whole"
    assert line(found, "DVC remote") == f"ok    DVC remote: store, {root.parent / 'remote'}"


def test_what_an_engine_needs_is_checked_for_that_engine_alone(root, monkeypatch) -> None:
    Path(".dvc/config").write_text("[core]\n")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    plain, ray, slurm = rvb(), rvb("--engine", "ray"), rvb("--engine", "slurm")
    assert line(ray, "DVC remote").startswith("FAIL  DVC remote: no default DVC remote carries the results")
    assert line(slurm, "SLURM").startswith("FAIL  SLURM: no sbatch here")
    assert [found.exit_code for found in (plain, ray, slurm)] == [0, 1, 1]


def test_locks_cut_short_are_mended_and_a_list_of_commands_cut_short_is_not(root) -> None:
    Path("pipelines/tiny/_data/dvc.lock").write_text("schema: '2.0'\nsta")
    assert line(rvb(), "locks").startswith("note  locks: pipelines/tiny/_data/dvc.lock was cut short")
    Path(".dvc/tmp").mkdir(exist_ok=True)
    Path(".dvc/tmp/rwlock").write_text("{")
    found = rvb()
    assert line(found, "locks").startswith("FAIL  locks: .dvc/tmp/rwlock is cut short")
    assert found.exit_code == 1


def test_a_submission_that_does_not_load_and_a_stale_pipeline(root) -> None:
    shutil.rmtree("pipelines/tiny/Tiny2026Linear-small")
    assert line(rvb(), "pipeline").startswith("note  pipeline: 1 of the generated files no longer fits")
    Path("submissions/Tiny2026Linear/submission.yaml").write_text("name: [")
    found = rvb()
    assert line(found, "pipeline").startswith(
        "note  pipeline: submissions/Tiny2026Linear/submission.yaml: not valid YAML"
    )
    assert found.exit_code == 0  # the other rows are built


def test_packages_of_other_versions_are_a_note_and_lost_ones_break(root, monkeypatch) -> None:
    Path("constraints.txt").write_text("# as published\ntorch==0.0.1\n")
    assert line(rvb(), "packages").startswith("note  packages: torch ")
    monkeypatch.setattr(
        doctor, "requires", lambda name: ["torch>=2", "no-such-package>=1", "graphviz; extra == 'crown'"]
    )
    found = rvb()
    assert line(found, "packages").startswith("FAIL  packages: no-such-package not installed; run: pip install")
    assert found.exit_code == 1


def test_a_processor_without_avx2_and_a_full_disk(root, monkeypatch) -> None:
    monkeypatch.setattr("benchmark.runtime.arithmetic._has_avx2", lambda: False)
    monkeypatch.setattr(doctor, "ROOM", 1e9)
    found = rvb()
    assert line(found, "arithmetic").startswith("note  arithmetic: no x86-64 with AVX2")
    assert line(found, "room").startswith("FAIL  room: ")
    assert found.exit_code == 1


def test_an_unknown_engine_is_refused(root) -> None:
    found = rvb("--engine", "dask")
    assert found.exit_code == 2
    assert "'dask' is not one of" in found.output


def test_what_holds_submissions_is_said_before_any_work(root, monkeypatch) -> None:
    def found(*parts: str) -> Result:
        monkeypatch.setattr("benchmark.sandbox.confinement.available", lambda: parts)
        return rvb()

    whole = ("landlock", "seccomp", "namespaces", "limits")
    assert line(found(*whole), "sandbox") == "ok    sandbox: landlock, seccomp, namespaces, limits"
    without = found("landlock", "seccomp", "limits")
    assert line(without, "sandbox").startswith("ok    sandbox: landlock, seccomp, limits; no namespaces")
    lacking = found("seccomp", "limits")
    assert line(lacking, "sandbox").startswith("FAIL  sandbox: this machine has no landlock")
    assert (without.exit_code, lacking.exit_code) == (0, 1)
    settings = Path("params.yaml")
    settings.write_text(settings.read_text().replace("wall: full", "wall: weak"))
    assert line(found("seccomp", "limits"), "sandbox").startswith("note  sandbox: seccomp, limits, without landlock")
    settings.write_text(settings.read_text().replace("wall: weak", "wall: none"))
    assert line(rvb(), "sandbox").startswith("note  sandbox: none")
