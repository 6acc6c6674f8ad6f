"""`rvb repro --engine ray` on a local Ray, and `--engine slurm` by submitit's executor for one machine.

Rows are those of one machine to the byte, whoever is killed.
"""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import cluster_project
import psutil
import pytest
from stages import planned_code, really_imported, run_stage, stage_names, wait_for
from tiny_project import ROOT, Project, built_once, edit
from typer.testing import CliRunner

from benchmark.commands.main import app
from benchmark.pipeline import dvc, ray, repro, slurm
from benchmark.runtime.errors import BenchmarkError

slow, long = pytest.mark.slow, pytest.mark.long
both = pytest.mark.parametrize("engine", ["ray", "slurm"])
ROWS = ["small", "given", "tuned"]
ALL = {(row, stage) for row in ROWS for stage in ("train", "evaluate")}


@pytest.fixture(scope="session")
def tuned(tmp_path_factory) -> Project:
    """The tuned row alone, and the training that it starts from, made on one machine. Not to be changed."""

    def build(root: Path) -> Project:
        project = cluster_project.with_given(root)
        project.rvb("repro", "Tiny2026Linear-tuned", "--track", "tiny")
        return project

    return built_once(tmp_path_factory, "tuned", build)


@pytest.fixture(scope="session")
def serial(tuned, tmp_path_factory) -> Project:
    """All rows and the board, made on one machine. Not to be changed."""

    def build(root: Path) -> Project:
        project = tuned.copy(root)
        project.rvb("repro", "--track", "tiny", "--jobs", "2")
        return project

    return built_once(tmp_path_factory, "serial", build)


@pytest.fixture
def project(tmp_path) -> Project:
    return cluster_project.with_given(tmp_path / "project")


def start(project: Project, engine: str, *rows: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmark.commands.main", "repro", *rows, "--track", "tiny", "--engine", engine]
    hooks = f"{ROOT / 'tests/support/stage_hooks'}{os.pathsep}{project.environment()['PYTHONPATH']}"
    own = {"PYTHONPATH": hooks, "BESIDE": str(project.root.parent), "RVB_SUBMITIT": "local", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [*command, "--jobs", "2"], cwd=project.root, env=project.environment() | own, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # which shells have their background jobs ignore
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for a coordinator; return its exit status and what it printed."""
    output, _ = process.communicate(timeout=500)
    return process.returncode, output


def begun(project: Project) -> list[tuple[str, str]]:
    """Return row and stage of each stage that began."""
    return [(row, stage) for row, stage, _ in processes(project)]


def processes(project: Project) -> list[list[str]]:
    """Return row, stage and process of each stage that began."""
    path = project.root.parent / "begun"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def same(project: Project, other: Project, rows: list[str] = ROWS) -> None:
    for row in rows:
        assert project.results(f"Tiny2026Linear-{row}") == other.results(f"Tiny2026Linear-{row}")
        assert any("record.json" in path for path in project.results(f"Tiny2026Linear-{row}"))
        assert (project.root / f"work/tiny/Tiny2026Linear-{row}/times/collect.json").exists()
    assert cluster_project.locks(project) == cluster_project.locks(other)
    assert cluster_project.site(project) == cluster_project.site(other)


@slow
@long
@both
def test_a_row_and_what_it_starts_from_are_those_of_steps_run_here(project, engine, tmp_path, monkeypatch) -> None:
    alone, given, tuned = project.copy(tmp_path / "alone"), "Tiny2026Linear-given", "Tiny2026Linear-tuned"
    status, output = ended(start(project, engine, tuned))
    assert status == 0, output
    assert begun(project) == [("given", "train"), ("tuned", "train"), ("tuned", "evaluate")]
    monkeypatch.chdir(alone.root)
    run_stage("data", "tiny")
    for row, names in ((given, stage_names("tiny", given)[:1]), (tuned, stage_names("tiny", tuned))):
        for name in names:
            run_stage(name, "tiny", row)
    assert project.results(tuned) == alone.results(tuned)
    assert "record/record.json" in project.results(tuned)
    assert "up to date" in project.rvb("repro", tuned, "--track", "tiny", "--dry-run").stdout


@slow
@long
@both
def test_after_a_killed_coordinator_the_same_command_goes_on(project, serial, engine) -> None:
    """What Ray's tasks answered is not computed again; jobs of SLURM run on, and are waited for. A third run does nothing."""
    hold = project.root.parent / "hold-evaluate"
    hold.touch()
    coordinator = start(project, engine)
    trained = [project.root / f"pipelines/tiny/Tiny2026Linear-{row}/dvc.lock" for row in ("small", "given")]
    wait_for(lambda: all(lock.exists() for lock in trained), "trainings", 300)
    wait_for(lambda: [stage for _, stage in begun(project)].count("evaluate") == 2, "evaluations", 300)
    coordinator.kill()
    coordinator.wait()
    if engine == "ray":
        hold.unlink()
    coordinator = start(project, engine)
    if engine == "slurm":
        assert coordinator.stdout is not None
        assert "waiting for job" in coordinator.stdout.readline()
        hold.unlink()
    status, output = ended(coordinator)
    assert status == 0, output
    same(project, serial)
    assert {*begun(project)} == ALL
    assert len(begun(project)) == len(ALL) + (2 if engine == "ray" else 0), "a stage ran twice that was not running"
    jobs = [path.read_bytes() for path in project.root.glob("work/slurm/jobs.json")]
    before = begun(project)
    status, output = ended(start(project, engine))
    assert (status, "everything is up to date" in output) == (0, True)
    assert before == begun(project)
    assert jobs == [path.read_bytes() for path in project.root.glob("work/slurm/jobs.json")]


@slow
@long
def test_a_killed_worker_is_replaced(project, tuned) -> None:
    hold = project.root.parent / "hold-evaluate"
    hold.touch()
    coordinator = start(project, "ray", "Tiny2026Linear-tuned")
    stage = wait_for(lambda: next((p for _, stage, p in processes(project) if stage == "evaluate"), None), "evaluate", 300)
    worker = next(parent for parent in psutil.Process(int(stage)).parents() if parent.name().startswith("ray::"))
    worker.send_signal(signal.SIGKILL)
    wait_for(lambda: begun(project).count(("tuned", "evaluate")) > 1, "another evaluate", 300)
    hold.unlink()
    status, output = ended(coordinator)
    assert status == 0, output
    same(project, tuned, ["tuned"])


@slow
@long
@both
def test_a_row_that_fails_is_named_and_the_others_stand(project, serial, engine) -> None:
    broken = project.root.parent / "break-given-train"
    broken.touch()
    status, output = ended(start(project, engine))
    assert status == 1
    log = f"work/logs/tiny-Tiny2026Linear-given{'-train' if engine == 'ray' else ''}.log"
    why = f"Tiny2026Linear-given: Tiny2026Linear-given has no train [log: {log}]"
    waits = "Tiny2026Linear-tuned: starts from the weights of a row that failed"
    shown = " ".join(output.split()).partition("error: ")[2]
    assert shown == f"2 of 3 rows failed, so there is no new board: {why}; {waits}"
    assert "ERROR: Tiny2026Linear-given has no train" in (project.root / log).read_text()
    assert project.results("Tiny2026Linear-small") == serial.results("Tiny2026Linear-small")
    assert not (project.root / "work/tiny/site").exists()


@slow
@long
def test_an_interrupted_coordinator_ends_at_once_and_its_jobs_are_waited_for(project) -> None:
    hold = project.root.parent / "hold-train"
    hold.touch()
    coordinator = start(project, "slurm", "Tiny2026Linear-small")
    wait_for(lambda: begun(project), "training", 300)
    coordinator.send_signal(signal.SIGINT)
    assert coordinator.wait(timeout=60) == 130
    hold.unlink()  # its job, which goes on, holds the other end of what it printed to
    status, output = ended(start(project, "slurm", "Tiny2026Linear-small"))
    assert coordinator.stdout is not None
    assert any(line.startswith("interrupted") for line in coordinator.stdout.read().splitlines())
    assert "waiting for job" in output
    assert (status, begun(project)) == (0, [("small", "train"), ("small", "evaluate")])


@slow
@long
def test_a_gpu_that_no_machine_has_is_refused_before_any_stage(project) -> None:
    edit(project.root / "params.yaml", "device: cpu", "device: cuda")
    status, output = ended(start(project, "ray"))
    assert status == 1
    assert " needs 1 GPU, which no machine of the cluster has; change params.yaml" in " ".join(output.split())
    assert "Traceback" not in output
    assert begun(project) == []


def test_a_machine_with_other_versions_is_refused_by_name() -> None:
    why, texts = ray.run_stage("pipelines/tiny/row/dvc.yaml:train", [], {}, ray.versions() | {"torch": "0.1"})
    assert why.startswith(f"{os.uname().nodename} has torch ")
    assert why.endswith("the coordinator 0.1; install the same there (constraints.txt)")
    assert not texts


def test_a_stage_that_wrote_no_lock_file_is_carried_out_all_the_same(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dvc, "run", lambda *_: None)
    assert ray._carried_out("pipelines/tiny/row/dvc.yaml:train", []) == ("", {})


@pytest.mark.parametrize("run", [lambda: ray.run("tiny", "", 2, print), lambda: slurm.run("tiny", print)])
def test_a_second_coordinator_is_refused(run, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with repro.alone(), pytest.raises(BenchmarkError, match=r"^another `rvb repro --engine` runs in this checkout"):
        run()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--address head:6379", "--address needs --engine ray"),
        ("--engine slurm --address head:6379", "--address needs --engine ray"),
        ("--engine ray --dry-run", "--dry-run does not go with --engine"),
        ("--engine slurm", "no sbatch on this machine"),
        ("--engine ray", "no default DVC remote carries the results between machines"),
    ],
)
def test_what_does_not_fit_is_refused(options, words, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path)
    assert words in str(CliRunner().invoke(app, ["repro", *options.split()]).exception)


def test_settings_that_submitit_does_not_know_are_refused_before_any_job(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RVB_SUBMITIT", "local")
    slurm.SETTINGS.write_text("timeout_min: 5\ncpus_per_tsk: 1\n")

    def engine(*arguments) -> None:
        with arguments[-1]([], {}):
            raise AssertionError("jobs are sent")

    monkeypatch.setattr(slurm.repro, "repro", engine)
    with pytest.raises(BenchmarkError, match=r"slurm\.yaml: Unknown executor 'cpus' in parameter 'cpus_per_tsk'\.$"):
        slurm.run("tiny", print)


@slow
@long
def test_each_kind_of_row_says_what_it_is(serial, tmp_path) -> None:
    trust = {}
    for variant in ROWS:
        path = serial.root / f"work/tiny/Tiny2026Linear-{variant}/record/record.json"
        trust[variant] = json.loads(path.read_text())["trust"]
        page = (serial.root / f"work/tiny/site/models/Tiny2026Linear-{variant}/index.html").read_text()
        assert 'src="pictures/perturbations.png" alt="Three rows' in page
        assert ("Not trained here" in page) == (variant == "given")
        assert ("Training started from" in page) == (variant == "tuned")
    # what goes back to weights from elsewhere was not trained from scratch
    assert trust == {"small": "rebuilt", "given": "re-evaluated", "tuned": "re-evaluated"}
    row, project = "Tiny2026Linear-given", serial.copy(tmp_path / "run-again")
    for name in ("pretrained", "pictures"):
        assert really_imported(project, name, "tiny", row) == planned_code(project, row, name), name


@slow
def test_nothing_private_of_dvc_ray_or_submitit_is_imported() -> None:
    for path in (ROOT / "benchmark").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            modules = [f"{node.module}.{name}" for name in names] if isinstance(node, ast.ImportFrom) else names
            for module in modules:
                home, *rest = module.split(".")
                own = home in ("ray", "submitit") or home.startswith("dvc")
                assert not (own and any(part.startswith("_") for part in rest)), f"{path}: {module}"
