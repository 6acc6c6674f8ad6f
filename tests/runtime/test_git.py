"""Another commit's files, read beside the working tree."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_project

from benchmark.runtime import git
from benchmark.runtime.errors import BenchmarkError


@pytest.fixture(autouse=True)
def _repository(tmp_path, monkeypatch) -> None:
    """A commit with two files, which the working tree has no more."""
    root = tmp_path / "repository"
    (root / "a/b").mkdir(parents=True)
    monkeypatch.chdir(root)
    Path("a/one ä.txt").write_bytes(b"1\n\xff")
    Path("a/b/two.txt").write_text("2")
    for arguments in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "one"]):
        tiny_project.git(*arguments)
    Path("a/one ä.txt").unlink()
    Path("a/b/two.txt").write_text("3")


def test_files_are_those_of_the_commit() -> None:
    commit = git.merge_base("main")
    assert git.files_at(commit, Path("a")) == [Path("a/b/two.txt"), Path("a/one ä.txt")]
    assert git.files_at(commit, Path("b")) == []
    assert git.read_at(commit, Path("a/one ä.txt")) == b"1\n\xff"
    assert git.read_at(commit, Path("a/three.txt")) is None
    Path("new.txt").touch()
    assert git.changed_since(commit) == {Path("a/one ä.txt"), Path("a/b/two.txt"), Path("new.txt")}


def test_what_git_cannot_do_is_said(tmp_path, monkeypatch) -> None:
    with pytest.raises(BenchmarkError, match="no branch or commit 'mian'"):
        git.merge_base("mian")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BenchmarkError, match="git is not installed"):
        git.merge_base("main")


def test_a_clean_commit_is_one_whose_files_stand_here() -> None:
    with pytest.raises(BenchmarkError, match=r"^uncommitted changes, such as a/b/two\.txt: no commit can be noted"):
        git.clean_commit()
    tiny_project.git("checkout", "-q", ".")
    for written in ("dvc.lock", "pipelines/digits/dvc.lock", "leaderboard/results/digits/reproduced.json"):
        Path(written).parent.mkdir(parents=True, exist_ok=True)
        Path(written).write_text("{}")
    assert git.merge_base("main").startswith(git.clean_commit())
    Path("new.py").touch()
    with pytest.raises(BenchmarkError, match=r"such as new\.py"):
        git.clean_commit()
