"""What the board reads about the age of published studies."""

from __future__ import annotations

import json

import pytest

from leaderboard import reading


def test_ages_are_read_as_they_were_written(tmp_path) -> None:
    ages = {"Sub-grid": ["made with other code"], "Sub-other": []}
    (tmp_path / "study_ages.json").write_text(json.dumps(ages))
    assert reading.read_ages(tmp_path / "study_ages.json") == ages


@pytest.mark.parametrize(
    ("content", "message"), [(None, "is missing; run `rvb repro`"), ("{", "is no valid JSON .*; delete it and run")]
)
def test_ages_that_cannot_be_read_are_one_line(tmp_path, content, message) -> None:
    if content is not None:
        (tmp_path / "study_ages.json").write_text(content)
    with pytest.raises(SystemExit, match=rf"error: .*study_ages\.json {message}"):
        reading.read_ages(tmp_path / "study_ages.json")
