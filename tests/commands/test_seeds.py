"""A row's study over its seeds by command: published, one run of it checked, and for all rows of a track."""

from __future__ import annotations

import json
import re
from pathlib import Path

import command
import pytest
import tiny_linear_row
from stages import run_stage, run_study
from tiny_project import Project, built_once, edit

from benchmark.pipeline import repro
from benchmark.records import reproduced
from benchmark.runtime import git
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import seeds

pytestmark = pytest.mark.slow

ID = "Tiny2026Linear-small-seeds"
SEEDS = ("Tiny2026Linear-small", "seeds", "--track", "tiny")
PUBLISH = ("publish", "Tiny2026Linear-small", "--study", "seeds", "--track", "tiny")
PUBLISHED = Path("leaderboard/results/tiny/studies") / f"{ID}.json"
GIVEN = tiny_linear_row.SUBMISSION.replace("Tiny2026Linear", "Tiny2026Given").partition("        training:")[0]


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Project:
    """A project whose row has its study of one training published, and a row of given weights. Not to be changed."""

    def build(root: Path) -> Project:
        project = tiny_linear_row.new(root)
        edit(project.root / "params.yaml", "wall: full", "wall: none")  # tests/studies has it
        given = project.root / "submissions/Tiny2026Given"
        given.mkdir()
        (given / "method.py").write_text(tiny_linear_row.METHOD + tiny_linear_row.LOADS)
        (given / "submission.yaml").write_text(GIVEN + "        weights: {path: weights/given.pt}\n")
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(project.root)
            patch.setattr(seeds, "TRAININGS", 1)
            run_stage("data", "tiny")
            run_study("tiny", ID)
            rvb(*PUBLISH)
        return project

    return built_once(tmp_path_factory, "seeds", build)


@pytest.fixture
def project(published, monkeypatch) -> None:
    """This project as working directory."""
    monkeypatch.chdir(published.root)
    monkeypatch.setattr(seeds, "TRAININGS", 1)


def rvb(*arguments: str) -> str:
    result = command.rvb(*arguments)
    if result.exception:
        raise result.exception
    return " ".join(result.output.split())


def test_a_published_study_holds_every_images_verdict_and_stands_in_the_list(project) -> None:
    (run,) = json.loads(PUBLISHED.read_text())["result"]["runs"]
    assert {len(bits) for bits in run["verdicts"].values()} == {20}
    assert re.search(r"study Tiny2026Linear-small seeds --track tiny .*\(seeds 0 to 0\); published study", rvb("list"))


def test_one_retrained_run_is_compared_and_marked(published, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(published.copy(tmp_path / "copy").root)
    monkeypatch.setattr(seeds, "TRAININGS", 1)
    monkeypatch.setattr(git, "clean_commit", lambda: "0123456789ab")
    check, marks = ("study", *SEEDS, "--check"), PUBLISHED.parents[1]
    before, results = PUBLISHED.read_bytes(), sorted(Path("work/tiny/studies").rglob("*"))
    assert f"{ID}: cell all, seed 0 is byte-identical to the published run noted in " in rvb(*check, "--mark")
    assert [(m.commit, m.what) for m in reproduced.read(marks).values()] == [("0123456789ab", "cell all, seed 0")]
    assert (PUBLISHED.read_bytes(), sorted(Path("work/tiny/studies").rglob("*"))) == (before, results)

    rvb(*PUBLISH)
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


def test_all_rows_of_a_track_run_and_row_and_submission_name_the_same_study(project, monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(repro, "repro_study", lambda grid, _: asked.append(grid.id))
    output = rvb("study", "--all-seeds", "--track", "tiny")
    assert "Tiny2026Given-small: weights trained elsewhere, so no seeds to vary" in output
    assert "Trainings that differ in their seed alone" in output
    rvb("study", *SEEDS)
    rvb("study", "Tiny2026Linear", "small-seeds", "--track", "tiny")
    assert asked == [ID, ID, ID]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--all-seeds --check", "leave out the other arguments"),
        ("--all-seeds Tiny2026Linear-small seeds", "leave out the other arguments"),
        ("Tiny2026Linear", "name a submission and one of its studies"),
        ("Tiny2026Linear grid --mark", "give both"),
    ],
)
def test_options_that_do_not_fit_are_refused(arguments, words) -> None:
    assert words in command.error("study", *arguments.split())
