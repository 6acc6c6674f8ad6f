"""What the board is told of papers and studies that nobody ran."""

from __future__ import annotations

import json
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
    found = read_papers(papers_file("tiny"))
    assert list(found) == [NAME]
    declared = yaml.safe_load(Path(f"submissions/{NAME}/submission.yaml").read_text())
    assert found[NAME].paper.model_dump(exclude={"url"}) == declared["paper"]
    assert list(found[NAME].studies) == ["grid", "small-seeds"]
    grid = found[NAME].studies["grid"]
    assert next(cell.name for cell in grid.grid()) == "as it is, bias on"
    assert grid.claims == {"slower, bias off": {"clean": 0.25}}
    board = yaml.safe_load(generate.generate()[generate.board_file("tiny")])["stages"]["leaderboard"]
    assert papers_file("tiny").as_posix() in board["deps"]


def test_a_track_without_submissions_declares_none(project, monkeypatch) -> None:
    monkeypatch.chdir(project.root)
    inputs.write("tiny")
    assert json.loads(papers_file("tiny").read_text()) == {}
