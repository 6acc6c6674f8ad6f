"""`rvb board` and `rvb list`: on files of Records that nothing was computed for."""

from __future__ import annotations

import shutil
from pathlib import Path

import command
import pytest
import tiny_linear_row
import tiny_record
from command import tiny_rvb as rvb
from tiny_project import edit

ROWS = ("Tiny2026Linear-small", "Tiny2026Other-small")
SUITES = "suites:\n  standard: [{attack: autoattack, norm: Linf, eps: 0.15}]\n"
TRACK = tiny_linear_row.TRACK.replace("suites:\n", SUITES).replace("radii: []", "radii: [0.1]")


@pytest.fixture(autouse=True)
def _project(linear_new) -> None:
    """A track of two rows, as working directory; neither is built."""
    Path("benchmark/tracks/tiny.yaml").write_text(TRACK)
    shutil.copytree("submissions/Tiny2026Linear", "submissions/Tiny2026Other")
    edit("submissions/Tiny2026Other/submission.yaml", "Tiny2026Linear", "Tiny2026Other")


def put(row: str, robust: int, published: bool = False, certified: bool = True) -> None:
    made = tiny_record.changed("robust", 0, "accuracy", to=tiny_record.proportion(robust))
    update = {"submission": row.partition("-")[0]} | ({} if certified else {"certified": ()})
    tiny_record.write(made.model_copy(update=update), published=published)


def cells(output: str) -> dict[str, list[str]]:
    """The numbers of each row, in the order of the table."""
    lines = [line.strip("│ ").split("│") for line in output.splitlines() if line.startswith("│")]
    return {name.strip(): [number.strip() for number in numbers] for name, *numbers in lines}


def test_rows_built_here_are_shown_best_first_and_the_others_named() -> None:
    put(ROWS[0], 30, certified=False)
    put(ROWS[1], 90, published=True)
    result = rvb("board")
    assert "Tiny digits: built here, in work/tiny" in result.output
    assert cells(result.output) == {ROWS[0]: ["95.0", "30.0", "–", "–"]}
    assert f"Not built here: {ROWS[1]}" in result.output
    put(ROWS[1], 30)  # of equals the certified one
    shown = cells(rvb("board").output)
    assert ([*shown], shown[ROWS[1]]) == ([ROWS[1], ROWS[0]], ["95.0", "30.0", "–", "61.0"])


def test_published_rows_are_shown_where_none_is_built_or_where_asked() -> None:
    assert command.error("board", "--track", "tiny") == (
        "no row of tiny is built here or published; run `rvb repro --track tiny`"
    )
    assert command.error("board", "--track", "digits").startswith("no submission enters track 'digits' yet")
    put(ROWS[1], 90, published=True)
    assert cells(rvb("board").output) == {ROWS[1]: ["95.0", "90.0", "–", "61.0"]}
    put(ROWS[0], 30)
    result = rvb("board", "--published")
    assert "published in leaderboard/results/tiny" in result.output
    assert [*cells(result.output)] == [ROWS[1]]
    assert f"Not published: {ROWS[0]}" in result.output


def test_list_says_the_state_of_each_row_and_takes_a_track() -> None:
    put(ROWS[1], 90, published=True)
    result = rvb("list")
    assert f"  {ROWS[0]}  Linear; not built here\n" in result.output
    assert f"  {ROWS[1]}  Linear; not built here; published\n" in result.output
    assert "Handwritten" not in result.output
    assert "digits  Handwritten digits" in command.rvb("list").output
    assert command.error("list", "--track", "tinny") == "unknown track 'tinny'; did you mean 'tiny'?"
