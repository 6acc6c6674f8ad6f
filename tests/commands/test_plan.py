"""`rvb plan`: what it prints, and its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_linear_row
from locked_project import lock
from typer.testing import CliRunner, Result

from benchmark.commands.main import app
from benchmark.commands.plan import size

ROW = "Tiny2026Linear-small"


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch) -> Path:
    """A project of one row in which nothing was run, as working directory."""
    root = tiny_linear_row.new(tmp_path / "project").root
    monkeypatch.chdir(root)
    return root


def rvb(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["plan", "--track", "tiny", *arguments])


def test_a_line_a_stage_and_sums() -> None:
    result = rvb(ROW, "--jobs", "2")
    assert result.exit_code == 0, result.output
    for words in (ROW, "attack-papers", "at most", "5 stages, about ", "with 2 at a time", "memory: ", "disk: "):
        assert words in result.output
    assert "not counted: pipelines/tiny/_data/dvc.yaml:data (never run)" in result.output
    assert "leaderboard" not in result.output, "rows alone, no board"


def test_what_is_done_is_said() -> None:
    lock("tiny")
    assert rvb().stdout == "everything is up to date; nothing would run\n"
    stages = json.loads(rvb("--json").stdout)["stages"]
    assert (stages[0]["stage"], stages[0]["how"], stages[0]["seconds"]) == ("train", "done", 0)


def test_a_row_that_cannot_be_measured_is_exit_status_1(project) -> None:
    (project / "submissions/Tiny2026Linear/method.py").write_text("import nothing_of_this_name\n")
    result = rvb()
    assert result.exit_code == 1
    assert f"{ROW} cannot be measured: submissions/Tiny2026Linear/method.py" in result.output


def test_names_that_are_none() -> None:
    assert "did you mean 'Tiny2026Linear'" in str(rvb("Tiny2026Linea-small").exception)
    assert "has no variant 'smal'; did you mean 'small'?" in str(rvb("Tiny2026Linear-smal").exception)
    assert "--all builds every row" in str(rvb(ROW, "--all").exception)


@pytest.mark.parametrize(
    ("count", "words"), [(0, ""), (12, "1 kB"), (999_400, "999 kB"), (1_200_000, "1.2 MB"), (3_200_000_000, "3.2 GB")]
)
def test_bytes_in_the_unit_that_fits(count, words) -> None:
    assert size(count) == words
