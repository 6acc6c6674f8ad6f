"""What the board reads of papers and studies that nobody ran."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from benchmark.pipeline import generate, inputs
from benchmark.studies.declared import papers_file
from leaderboard.reading import read_papers

NAME = "Tiny2026Linear"


@pytest.mark.usefixtures("studied")
def test_declared_papers_stand_where_the_board_reads_them() -> None:
    inputs.write("tiny")
    ((name, paper),) = read_papers(papers_file("tiny")).items()
    declared = yaml.safe_load(Path(f"submissions/{NAME}/submission.yaml").read_text())
    assert (name, paper.paper.model_dump(exclude={"url"})) == (NAME, declared["paper"])
    assert list(paper.studies) == ["grid", "small-seeds"]
    grid = paper.studies["grid"]
    assert next(cell.name for cell in grid.grid()) == "as it is, bias on"
    assert grid.claims == {"slower, bias off": {"clean": 0.25}}
    board = yaml.safe_load(generate.generate()[generate.board_file("tiny")])["stages"]["leaderboard"]
    assert papers_file("tiny").as_posix() in board["deps"]


def test_a_track_without_submissions_declares_none(project, monkeypatch) -> None:
    monkeypatch.chdir(project.root)
    inputs.write("tiny")
    assert read_papers(papers_file("tiny")) == {}
