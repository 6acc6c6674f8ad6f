"""The scripts that workflows run, in a project of a linear row: a pull request, a night, the pages."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import tiny_linear_row
from tiny_project import ROOT, Project, edit, git

pytestmark = [pytest.mark.slow, pytest.mark.long]
ROW = "Tiny2026Linear-small"


def commit(project: Project, words: str) -> None:
    git("add", "--all", cwd=project.root)
    git("commit", "-qm", words, cwd=project.root)


def script(project: Project, name: str, *arguments: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """What a script of .ci printed, and what it added to the job's summary."""
    summary = project.root.parent / "summary.md"
    summary.unlink(missing_ok=True)
    environment = {**project.environment(), "GITHUB_STEP_SUMMARY": str(summary)}
    command = [str(project.root / ".ci" / name), *arguments]
    done = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True)
    return done, summary.read_text() if summary.exists() else ""


@pytest.fixture(scope="module")
def main(tmp_path_factory) -> Project:
    """A project whose one row is built and published, committed on main. Not to be changed: see `branch`."""
    project = tiny_linear_row.new(tmp_path_factory.mktemp("ci") / "project")
    shutil.copytree(ROOT / ".ci", project.root / ".ci")
    project.rvb("repro", "--track", "tiny")
    project.rvb("publish", ROW, "--track", "tiny")
    commit(project, "one")
    git("branch", "-M", "main", cwd=project.root)
    return project


@pytest.fixture
def branch(main, tmp_path) -> Project:
    project = main.copy(tmp_path / "project")
    git("switch", "-qc", "mine", cwd=project.root)
    return project


def test_a_pull_request_builds_the_rows_that_it_touches(branch) -> None:
    built = branch.root / "work/tiny" / ROW / "record/record.json"
    before = built.stat().st_mtime_ns
    done, summary = script(branch, "pull-request", "main", "tiny")
    assert done.returncode == 0, done.stderr
    assert "Rows of tiny whose code or settings the branch changes: none." in summary
    branch.rvb("new", "Doe2026Tiny")
    for old, new in (("digits:", "tiny:"), ("epochs: 20", "epochs: 2")):
        edit(branch.root / "submissions/Doe2026Tiny/submission.yaml", old, new)
    branch.rvb("pipeline")
    commit(branch, "a row")

    done, summary = script(branch, "pull-request", "main", "tiny")
    assert done.returncode == 1
    assert "not what was published: Doe2026Tiny-small" in done.stderr, "it is not published yet"
    assert re.search(r"^Doe2026Tiny: all \d+ checks passed$", summary, re.MULTILINE)
    assert "\n1 new, 0 removed, 0 changed, 1 same\n" in summary  # from which .ci/comment takes its label
    assert "branch changes: Doe2026Tiny-small." in summary
    assert "| Doe2026Tiny-small on tiny, new | clean | – | " in summary
    assert built.stat().st_mtime_ns == before, "the other row is left alone"

    branch.rvb("publish", "Doe2026Tiny-small", "--track", "tiny")
    commit(branch, "its record")
    done, _ = script(branch, "pull-request", "main", "tiny")
    assert done.returncode == 0, done.stderr

    (branch.root / "submissions/Doe2026Tiny/README.md").unlink()
    commit(branch, "no license")
    done, summary = script(branch, "pull-request", "main", "tiny")
    assert done.returncode == 1
    assert "FAIL  license: missing" in summary
    assert "rvb check Doe2026Tiny failed" in done.stderr


def test_a_night_builds_everything_from_nothing(branch) -> None:
    done, _ = script(branch, "nightly", "tiny")
    assert done.returncode == 1
    assert "use a clean checkout" in done.stderr
    shutil.rmtree(branch.root / "work")
    shutil.rmtree(branch.root / ".dvc/cache")
    path = branch.root / "leaderboard/results/tiny" / f"{ROW}.json"
    record = json.loads(path.read_text())
    record["sha256"]["weights"] = "0" * 64
    path.write_text(json.dumps(record))
    commit(branch, "weights that are others")
    done, summary = script(branch, "nightly", "tiny")
    assert done.returncode == 1
    assert f"are not what was published: {ROW}" in done.stderr
    assert "\n0 new, 0 removed, 1 changed, 0 same\n" in summary
    assert f"| {ROW} on tiny, changed | sha256 of weights | 000000000000 | " in summary


def test_the_pages_hold_the_board_and_the_documentation(branch) -> None:
    pytest.importorskip("mkdocs")
    for name in ("docs", "measurements"):
        shutil.copytree(ROOT / name, branch.root / name)
    for name in ("mkdocs.yml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, branch.root / name)
    done, _ = script(branch, "pages", "tiny")
    assert done.returncode == 0, done.stderr
    pages = branch.root / "build/pages"
    assert 'href="tiny/index.html"' in (pages / "index.html").read_text()
    assert f'data-row="{ROW}"' in (pages / "tiny/index.html").read_text()
    assert (pages / "tiny/models" / ROW / "index.html").exists()
    assert "robust-vit-bench" in (pages / "docs/index.html").read_text()


def test_every_script_is_one_that_can_run() -> None:
    for path in Path(ROOT, ".ci").iterdir():
        assert os.access(path, os.X_OK), path
        subprocess.run(["bash", "-n", str(path)], check=True)
