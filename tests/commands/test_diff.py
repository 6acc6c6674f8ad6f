"""`rvb diff`: Records of a git repository's branch against those of its merge base."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path

import command
import pytest
import regression_record
from tiny_linear_row import TRACK
from typer.testing import Result

from benchmark.records.per_image import PerImage
from benchmark.specs.base import to_json

ROW = "Tiny2026Net-small"
PUBLISHED = Path("leaderboard/results/tiny")
NAME = "autoattack-Linf-0.15"


def git(*arguments: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], check=True, capture_output=True)


@pytest.fixture(autouse=True)
def _repository(tmp_path, monkeypatch) -> None:
    """A branch of a repository that has published a row, and on main a later commit that is not its merge base."""
    monkeypatch.chdir(tmp_path)
    for path, text in (("benchmark/tracks/tiny.yaml", TRACK), ("leaderboard/results/tiny/machine.json", "{}")):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
    put(PUBLISHED / f"{ROW}.json")
    put_images(PUBLISHED / f"images/{ROW}.json", broken=(3,))
    git("init", "-q", "-b", "main")
    git("add", ".")
    git("commit", "-qm", "one")
    git("switch", "-qc", "mine")
    git("switch", "-q", "main")
    (PUBLISHED / f"{ROW}.json").unlink()
    git("commit", "-qam", "two")
    git("switch", "-q", "mine")


def put(file: Path, *path: str | int, to: object = None) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(to_json(regression_record.changed(*path, to=to)))


def put_images(file: Path, broken: tuple[int, ...]) -> None:
    """Five images, of which some are broken."""
    digits = "".join("0" if image in broken else "1" for image in range(5))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(to_json(PerImage(row=ROW, scores={NAME: digits, "robust Linf 0.15": digits})))


def built(*path: str | int, to: object = None, broken: tuple[int, ...] | None = None) -> None:
    folder = Path("work/tiny") / ROW / "record"
    put(folder / "record.json", *path, to=to)
    if broken is not None:
        put_images(folder / "per_image.json", broken)


def rvb(*arguments: str) -> Result:
    return command.rvb("diff", *arguments)


def test_a_row_that_was_built_here_is_compared_by_image() -> None:
    result = rvb()
    assert result.exit_code == 0
    assert result.output.strip().endswith("0 new, 0 removed, 0 changed, 1 same")
    built("attacks", 0, "accuracy", to=regression_record.proportion(41), broken=(1, 2))
    result = rvb()
    assert result.exit_code == 1
    for cells in (
        f"{NAME} | 42 of 100 | 41 of 100 | ",
        f"images of {NAME} | image 1: 1 | image 1: 0 | 3",
        "images of robust Linf 0.15 | image 1: 1 | image 1: 0 | 3",
    ):
        assert f"| {ROW} on tiny, changed | {cells} |\n" in result.output
    assert rvb("--exit-zero").exit_code == 0
    assert rvb("--published").exit_code == 0, "what is in work/ is left out"


def test_other_bytes_alone_break_nothing_and_code_is_not_compared() -> None:
    digests = regression_record.content()["sha256"]
    built("sha256", to=digests | {"weights": "w2", "code train": "c2"}, broken=(3,))
    result = rvb()
    assert result.exit_code == 0
    (line,) = [line for line in result.output.splitlines() if line.startswith(f"| {ROW}")]
    assert line == f"| {ROW} on tiny, changed | sha256 of weights | w1 | w2 |  |"


def test_names_cannot_break_the_table() -> None:
    built("robust", 0, "accuracy", to=regression_record.proportion(39))
    put(PUBLISHED / "Tiny2026Net-more.json", "variant", to="more")
    put(PUBLISHED / "Tiny2026Net-odd|[x].json", "variant", to="odd|[x]")
    lines = rvb("--exit-zero").output.splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in table} == {6}
    assert any("is built without its images" in line for line in table)
    assert "| Tiny2026Net-more on tiny, new | clean | – | 95 of 100 |  |" in table
    assert lines[2] == "2 new, 0 removed, 1 changed, 0 same"


def test_a_removed_row_breaks_and_a_new_one_does_not() -> None:
    put(PUBLISHED / "Tiny2026Net-more.json", "variant", to="more")
    assert rvb().exit_code == 0
    (PUBLISHED / f"{ROW}.json").unlink()
    result = rvb("--track", "tiny")
    assert result.exit_code == 1
    assert f"{ROW} on tiny, removed" in result.output


def test_what_cannot_be_compared_is_one_line() -> None:
    error = partial(command.error, "diff")
    assert "no branch or commit 'other' here" in error("--base", "other")
    assert "did you mean 'tiny'" in error("--track", "tinny")
    assert "give both" in error("--all")
    built(broken=(1,))
    Path(f"work/tiny/{ROW}/record/per_image.json").write_text("half")
    assert "per_image.json is no valid JSON" in error()
    (PUBLISHED / f"{ROW}.json").write_text("{}")
    git("commit", "-qam", "three")
    assert f"leaderboard/results/tiny/{ROW}.json at " in error("--base", "HEAD")
    git("switch", "-q", "--orphan", "alone")
    git("commit", "-q", "--allow-empty", "-m", "four")
    Path("benchmark/tracks").mkdir(parents=True, exist_ok=True)
    assert "no commit in common" in error("--base", "main")


def test_origins_branch_stands_in_for_a_missing_one() -> None:
    git("update-ref", "refs/remotes/origin/main", "main")
    git("branch", "-qD", "main")
    assert rvb().exit_code == 0
