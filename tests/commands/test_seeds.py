"""A row's study over its seeds by command: published, one run of it checked, and for all rows of a track."""

from __future__ import annotations

import json
import re
from pathlib import Path

import command
import pytest
import tiny_linear_row
from built_once import built_once
from edited_file import edit
from stages import run_stage, run_study
from tiny_project import Project

from benchmark.pipeline import repro
from benchmark.records import reproduced
from benchmark.runtime import git
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import seeds

ID = "Tiny2026Linear-small-seeds"
PUBLISHED = Path("leaderboard/results/tiny/studies") / f"{ID}.json"


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A project whose row has its study published, of one training. Not to be changed: see `project`."""
    return built_once(tmp_path_factory, "seeds", published)


def published(root: Path) -> Project:
    made = tiny_linear_row.new(root)
    edit(made.root / "params.yaml", "wall: full", "wall: none")  # tests/studies has it
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made.root)
        patch.setattr(seeds, "TRAININGS", 1)
        run_stage("data", "tiny")
        run_study("tiny", ID)
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
    result = command.rvb(*arguments)
    if result.exception:
        raise result.exception
    return " ".join(result.output.split())


def test_what_is_published_holds_every_images_verdict(project) -> None:
    (run,) = json.loads(PUBLISHED.read_text())["result"]["runs"]
    assert {len(bits) for bits in run["verdicts"].values()} == {20}
    assert re.search(r"study Tiny2026Linear-small seeds --track tiny .*\(seeds 0 to 0\); published study", rvb("list"))


@pytest.mark.slow
def test_one_run_trained_again_is_compared_and_marked(project, monkeypatch) -> None:
    check = ("study", "Tiny2026Linear-small", "seeds", "--track", "tiny", "--check")
    monkeypatch.setattr(git, "clean_commit", lambda: "0123456789ab")
    before, results = PUBLISHED.read_bytes(), sorted(Path("work/tiny/studies").rglob("*"))
    assert f"{ID}: cell all, seed 0 is byte-identical to the published run noted in " in rvb(*check, "--mark")
    marks = PUBLISHED.parents[1]
    assert [(m.commit, m.what) for m in reproduced.read(marks).values()] == [("0123456789ab", "cell all, seed 0")]
    assert (PUBLISHED.read_bytes(), sorted(Path("work/tiny/studies").rglob("*"))) == (before, results)

    rvb("publish", "Tiny2026Linear-small", "--study", "seeds", "--track", "tiny")
    assert not reproduced.read(marks), "published again"
    content = json.loads(before)
    content["result"]["runs"][0]["weights"] = "0" * 64
    PUBLISHED.write_text(json.dumps(content))
    with pytest.raises(BenchmarkError, match=f"{ID}: cell all, seed 0 differs from {PUBLISHED} in weights$"):
        rvb(*check, "--mark")
    assert not reproduced.read(marks)
    edit("submissions/Tiny2026Linear/submission.yaml", "epochs: 2", "epochs: 3")
    with pytest.raises(BenchmarkError, match="asks for other cells than were published; publish it again"):
        rvb(*check)
    PUBLISHED.unlink()
    with pytest.raises(BenchmarkError, match="is not published; run `rvb study Tiny2026Linear-small seeds"):
        rvb(*check)


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


def test_what_cannot_be_asked_for_is_refused() -> None:
    for arguments in (["--check"], ["Tiny2026Linear-small", "seeds"]):
        assert "leave out the other arguments" in command.error("study", "--all-seeds", *arguments)
    assert "name a submission and one of its studies" in command.error("study", "Tiny2026Linear")
    assert "give both" in command.error("study", "Tiny2026Linear", "grid", "--mark")


def test_the_row_and_the_submission_name_the_same_study(project, monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(repro, "repro_study", lambda grid, _: asked.append(grid.id))
    rvb("study", "Tiny2026Linear-small", "seeds", "--track", "tiny")
    rvb("study", "Tiny2026Linear", "small-seeds", "--track", "tiny")
    assert asked == [ID, ID]
