"""`rvb submit`: what it refuses before any work, the branch that it begins, and the weights that it publishes."""

from __future__ import annotations

from pathlib import Path

import command
import pytest

from benchmark.commands import publish, submit
from benchmark.runtime import files, git
from benchmark.runtime.errors import BenchmarkError

NAME = "Tiny2026Linear"


def commit(*paths: str) -> None:
    git.run("add", "--", *paths)
    git.run("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one")


@pytest.fixture
def repository(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    git.run("init", "-q", "-b", "main")
    Path("README.md").write_text("A project\n")
    commit("README.md")


@pytest.mark.usefixtures("repository")
def test_changes_of_something_else_are_named_before_any_work() -> None:
    files.write(Path(f"submissions/{NAME}/method.py"), "")
    files.write(Path("pipelines/rows.json"), "[]")
    submit._check_tree(NAME)
    files.write(Path("benchmark/attack.py"), "")
    with pytest.raises(BenchmarkError, match=r"benchmark/attack\.py changed too, which is no part of Tiny2026Linear"):
        submit._check_tree(NAME)


@pytest.mark.usefixtures("repository")
def test_main_is_left_for_a_branch_of_the_submissions_name() -> None:
    assert submit._branch(NAME) == NAME
    assert git.run("branch", "--show-current").strip() == NAME
    assert submit._branch("Other") == NAME, "a branch of one's own stays"
    git.run("switch", "-q", "main")
    with pytest.raises(BenchmarkError, match=f"there is a branch {NAME} already"):
        submit._branch(NAME)
    with pytest.raises(BenchmarkError, match=r"^git switch failed: fatal: invalid reference: nowhere$"):
        git.run("switch", "nowhere")


@pytest.mark.usefixtures("repository")
def test_weights_are_published_with_their_record_up_to_a_size(monkeypatch, capsys) -> None:
    made = Path("work/tiny/A-b/train/model.safetensors")
    kept = Path("leaderboard/results/tiny/weights/A-b.safetensors")
    files.write(made, b"weights")
    digest = files.sha256_file(made)
    with pytest.raises(BenchmarkError, match="are not the weights of the Record"):
        publish._write_weights("tiny", "A-b", "0" * 64)
    monkeypatch.setattr(publish, "LARGEST", 6)
    publish._write_weights("tiny", "A-b", digest)
    assert "are not published" in capsys.readouterr().out
    assert not kept.exists()
    monkeypatch.setattr(publish, "LARGEST", 7)
    publish._write_weights("tiny", "A-b", digest)
    assert kept.read_bytes() == b"weights"
    files.write(made, b"others")
    publish._write_weights("tiny", "A-b", files.sha256_file(made))
    assert kept.read_bytes() == b"others"


@pytest.mark.slow
def test_a_submission_that_fails_its_checks_begins_no_branch(linear_row) -> None:
    """It lacks a license and a citation."""
    git.run("checkout", "-q", "-b", "main")
    commit(".gitignore", "params.yaml", "benchmark", "leaderboard", ".dvc/config", "submissions")
    assert command.rvb("submit", NAME).exit_code == 1
    assert git.run("branch", "--show-current").strip() == "main"
