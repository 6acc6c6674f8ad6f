"""A row's study over its seeds by command: published, told old with the reason, and for all rows of a track."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_linear_row
from built_once import built_once
from edited_file import edit
from stages import run_stage
from tiny_project import Project
from typer.testing import CliRunner

from benchmark.commands.main import app
from benchmark.pipeline import repro
from benchmark.specs import seeds
from benchmark.studies.ages import ages

ID = "Tiny2026Linear-small-seeds"
PUBLISHED = Path("leaderboard/results/tiny/studies") / f"{ID}.json"
AGAIN = (
    "`rvb study Tiny2026Linear-small seeds --track tiny`, "
    "then `rvb publish Tiny2026Linear-small --study seeds --track tiny`"
)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A project whose row has its study published, of one training. Not to be changed: see `project`."""
    return built_once(tmp_path_factory, "seeds", published)


def published(root: Path) -> Project:
    made = tiny_linear_row.new(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made.root)
        patch.setattr(seeds, "TRAININGS", 1)
        run_stage("data", "tiny")
        run_stage("study", "tiny", ID)
        rvb("publish", "Tiny2026Linear-small", "--study", "seeds", "--track", "tiny")
    return made


@pytest.fixture
def project(ran, tmp_path, monkeypatch):
    """A copy of it as working directory."""
    made = ran.copy(tmp_path / "copy")
    monkeypatch.chdir(made.root)
    monkeypatch.setattr(seeds, "TRAININGS", 1)
    return made


def rvb(*arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments])
    if result.exception:
        raise result.exception
    return " ".join(result.output.split())


def test_what_is_published_holds_every_images_verdict(project) -> None:
    (run,) = json.loads(PUBLISHED.read_text())["result"]["runs"]
    assert {len(bits) for bits in run["verdicts"].values()} == {20}
    assert ages("tiny") == {ID: []}
    assert "study Tiny2026Linear-small seeds --track tiny" in rvb("list")


@pytest.mark.parametrize(
    ("path", "old", "new", "reason"),
    [
        ("submissions/Tiny2026Linear/submission.yaml", "epochs: 2", "epochs: 3", "settings differ: cell all"),
        ("submissions/Tiny2026Linear/method.py", "64, 10", "8 * 8, 10", "made with other code"),
        ("params.yaml", "seed: 0", "seed: 1", "seeds 0 then, 1 now"),
        ("benchmark/tracks/tiny.yaml", "norm: L2, eps: 0.5, parameters", "norm: L2, eps: 0.6, parameters",
         "measure no longer asked for: APGD L2 0.5; measure not taken: APGD L2 0.6"),
    ],
)  # fmt: skip
def test_a_change_makes_it_old_with_the_reason_and_the_commands(project, path, old, new, reason) -> None:
    edit(path, old, new)
    assert rvb("study", "--stale") == f"Tiny2026Linear-small seeds --track tiny: {reason}: {AGAIN}"


def test_one_whose_row_is_gone_or_no_longer_trained_here_is_to_be_removed(project) -> None:
    file = "submissions/Tiny2026Linear/submission.yaml"
    edit(file, "  small:", "  large:")
    assert f"{file} has no such row: `git rm` what is published of it" in rvb("study", "--stale")


def test_all_rows_of_a_track_run_one_after_another_and_those_without_seeds_are_said(project, monkeypatch) -> None:
    folder = project.root / "submissions/Tiny2026Given"
    folder.mkdir()
    (folder / "method.py").write_text(tiny_linear_row.METHOD + tiny_linear_row.LOADS)
    text, _, _ = tiny_linear_row.SUBMISSION.replace("Tiny2026Linear", "Tiny2026Given").partition("        training:")
    (folder / "submission.yaml").write_text(text + "        weights: {path: weights/given.pt}\n")
    asked = []
    monkeypatch.setattr(repro, "repro_study", lambda grid, _: asked.append(grid.id))
    output = rvb("study", "--all-seeds", "--track", "tiny")
    assert asked == [ID]
    assert "Tiny2026Given-small: weights trained elsewhere, so no seeds to vary" in output
    assert "Trainings that differ in their seed alone" in output


@pytest.mark.parametrize("arguments", [["--all-seeds", "--stale"], ["--all-seeds", "Tiny2026Linear-small", "seeds"]])
def test_all_seeds_stands_alone(arguments) -> None:
    with pytest.raises(Exception, match="leave out the other arguments"):
        rvb("study", *arguments)


def test_the_row_and_the_submission_name_the_same_study(project, monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(repro, "repro_study", lambda grid, _: asked.append(grid.id))
    rvb("study", "Tiny2026Linear-small", "seeds", "--track", "tiny")
    rvb("study", "Tiny2026Linear", "small-seeds", "--track", "tiny")
    assert asked == [ID, ID]
