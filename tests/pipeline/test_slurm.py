"""`rvb repro --engine slurm`, by submitit's executor for one machine."""

from __future__ import annotations

import pytest
import toy_rows
from stage_processes import wait_for
from typer.testing import CliRunner

from benchmark.commands.main import app

ROWS = ["one", "two", "three"]
LOCAL = {"RVB_SUBMITIT": "local"}
pytestmark = pytest.mark.slow


@pytest.fixture
def root(tmp_path):
    return toy_rows.new(tmp_path, ROWS, remote=False)


def test_rows_are_those_of_one_machine_and_a_second_run_sends_nothing(root, tmp_path_factory) -> None:
    serial = toy_rows.new(tmp_path_factory.mktemp("serial"), ROWS)
    toy_rows.run(serial, "dvc", "repro", toy_rows.BOARD)
    status, said = toy_rows.ended(toy_rows.start(root, "slurm", *ROWS, **LOCAL))
    assert status == 0, said
    assert toy_rows.results(root) == toy_rows.results(serial)
    order = [(row, stage) for row, stage, _ in toy_rows.begun(root)]
    assert order.index(("two", "train")) > order.index(("one", "record"))
    jobs = (root / "work/slurm/jobs.json").read_bytes()
    assert toy_rows.ended(toy_rows.start(root, "slurm", *ROWS, **LOCAL))[0] == 0
    assert (root / "work/slurm/jobs.json").read_bytes() == jobs
    assert len(toy_rows.begun(root)) == 12


def test_jobs_of_a_killed_coordinator_run_on_and_are_waited_for(root) -> None:
    (root.parent / "hold-certify").touch()
    coordinator = toy_rows.start(root, "slurm", "one", "three", **LOCAL)
    wait_for(lambda: sum(stage == "certify" for _, stage, _ in toy_rows.begun(root)) == 2, "certify", 200)
    coordinator.kill()
    coordinator.wait()
    coordinator = toy_rows.start(root, "slurm", *ROWS, **LOCAL)
    assert coordinator.stdout is not None
    assert "waiting for job" in coordinator.stdout.readline()
    (root.parent / "hold-certify").unlink()
    status, said = toy_rows.ended(coordinator)
    assert status == 0, said
    assert len(toy_rows.begun(root)) == 12, "no stage ran twice"


def test_a_row_that_fails_is_named_and_the_others_stand(root) -> None:
    (root.parent / "break-one-certify").touch()
    status, said = toy_rows.ended(toy_rows.start(root, "slurm", *ROWS, **LOCAL))
    assert status == 1
    last = said.splitlines()[-1]
    assert last.startswith("error: 2 of 3 rows failed, so there is no new board: one: one has no certify [")
    assert "[log: work/logs/tiny-one.log]" in last
    assert (root / "work/tiny/three/record/record.json").exists()


def test_settings_go_to_submitit_and_unknown_ones_are_refused(root) -> None:
    (root / "slurm.yaml").write_text("timeout_min: 5\ncpus_per_tsk: 1\n")
    status, said = toy_rows.ended(toy_rows.start(root, "slurm", *ROWS, **LOCAL))
    assert status == 1
    assert said.splitlines()[-1] == "error: slurm.yaml: Unknown executor 'cpus' in parameter 'cpus_per_tsk'."


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--address head:6379", "--address needs --engine ray"),
        ("--engine slurm --address head:6379", "--address needs --engine ray"),
        ("--engine ray --dry-run", "--dry-run does not go with --engine"),
        ("--engine slurm", "no sbatch on this machine"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, words, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert words in str(CliRunner().invoke(app, ["repro", *options.split()]).exception)
