"""Published studies and their age, on a study that really ran: `rvb list`, `rvb study --stale`, and the board's stage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_linear_row
import tiny_study
import yaml
from built_once import built_once
from edited_file import edit
from stages import run_stage
from tiny_project import Project
from typer.testing import CliRunner

from benchmark.commands.main import app
from benchmark.pipeline import generate, inputs
from benchmark.studies.ages import ages

ID = "Tiny2026Linear-grid"
AGAIN = "`rvb study Tiny2026Linear grid`, then `rvb publish Tiny2026Linear --study grid`"
SMALL = ("seeds: [0, 1]\ncells:\n  - {name: as it is}\n", "seeds: [0]\ncells:\n")  # two networks
PUBLISHED = Path("leaderboard/results/tiny/studies") / f"{ID}.json"


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A project whose study ran and is published. Not to be changed: see `project`."""
    return built_once(tmp_path_factory, "study", published)


def published(root: Path) -> Project:
    made = tiny_linear_row.new(root)
    tiny_study.add(made, SMALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made.root)
        run_stage("data", "tiny")
        run_stage("study", *tiny_study.NAMES)
        rvb("publish", "Tiny2026Linear", "--study", "grid")
    return made


@pytest.fixture
def project(ran, tmp_path, monkeypatch):
    """A copy of it as working directory."""
    made = ran.copy(tmp_path / "copy")
    monkeypatch.chdir(made.root)
    return made


def rvb(*arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments])
    if result.exception:
        raise result.exception
    return result.output


def test_what_was_just_run_is_todays(project) -> None:
    assert ages("tiny") == {ID: []}
    assert rvb("study", "--stale") == "all 1 published studies are today's\n"
    assert "  study Tiny2026Linear grid  A <table> (Table 1); published\n" in rvb("list")


@pytest.mark.parametrize(
    ("path", "old", "new", "reason"),
    [
        ("submissions/Tiny2026Linear/method.py", "64, 10", "8 * 8, 10", "made with other code"),
        ("submissions/Tiny2026Linear/measures.py", "range(3)", "range(2)", "made with other code"),
        ("benchmark/attacks/pgd.py", "import torch\n", "import torch\n\nMORE = 1\n", "made with other code"),
        (
            "submissions/Tiny2026Linear/submission.yaml", "epochs: 2", "epochs: 3",
            "settings differ: cell slower, bias on, slower, bias off",
        ),
        ("submissions/Tiny2026Linear/studies/grid.yaml", "seeds: [0]", "seeds: [0, 1]", "seeds 0 then, 0, 1 now"),
        ("benchmark/tracks/tiny.yaml", "version: 1", "version: 2", "track version 1 then, 2 now"),
    ],
)  # fmt: skip
def test_a_change_makes_it_old_with_the_reason_and_the_command(project, path, old, new, reason) -> None:
    edit(path, old, new)
    assert rvb("study", "--stale") == f"Tiny2026Linear grid: {reason}: {AGAIN}\n"
    assert f"A <table> (Table 1); published, not today's: {reason}\n" in rvb("list")


def test_other_data_make_it_old_and_missing_ones_are_said(project) -> None:
    edit("benchmark/tracks/tiny.yaml", "test: 40", "test: 41")
    run_stage("data", "tiny")
    assert ages("tiny") == {ID: ["made with other data: test, train, validation"]}
    (Path("work/tiny/data/data.json")).unlink()
    (Path("work/tiny/data")).rename("work/tiny/elsewhere")
    assert rvb("study", "--stale") == (
        "data not prepared here, so not compared: tiny\nall 1 published studies are today's\n"
    )


def test_what_is_shown_alone_makes_nothing_old(project) -> None:
    edit("submissions/Tiny2026Linear/studies/grid.yaml", "title: A <table>", "title: Another")
    edit("submissions/Tiny2026Linear/studies/grid.yaml", "{clean: 0.25}", "{clean: 0.5}")
    assert ages("tiny") == {ID: []}


def test_a_study_that_is_gone_or_damaged_is_one_line(project) -> None:
    file = Path("submissions/Tiny2026Linear/studies/grid.yaml")
    text = file.read_text()
    file.unlink()
    assert rvb("study", "--stale") == f"Tiny2026Linear grid: {file} is gone: `git rm` what is published of it\n"
    file.write_text(text)
    for content in ("", "{", "{}", "[]"):
        PUBLISHED.write_text(content)
        with pytest.raises(Exception, match=f"{PUBLISHED} is no .*; bring it back with git, or publish the study"):
            rvb("study", "--stale")


def test_stale_takes_no_name_and_a_study_needs_one(project) -> None:
    with pytest.raises(Exception, match="leave out the other arguments"):
        rvb("study", "Tiny2026Linear", "--stale")
    with pytest.raises(Exception, match="name a submission and one of its studies"):
        rvb("study", "Tiny2026Linear")


def test_the_board_depends_on_the_age_of_what_it_shows(project) -> None:
    def deps() -> list[str]:
        return yaml.safe_load(generate.generate()[generate.board_file("tiny")])["stages"]["leaderboard"]["deps"]

    assert "work/tiny/inputs/study_ages.json" in deps()
    PUBLISHED.unlink()
    assert "work/tiny/inputs/study_ages.json" not in deps()


def test_ages_are_written_before_anything_runs_where_the_board_reads_them(project) -> None:
    ages_file = Path("work/tiny/inputs/study_ages.json")
    inputs.write("tiny")
    assert json.loads(ages_file.read_text()) == {ID: []}
    edit("benchmark/tracks/tiny.yaml", "version: 1", "version: 2")
    inputs.write("tiny")
    assert json.loads(ages_file.read_text()) == {ID: ["track version 1 then, 2 now"]}
