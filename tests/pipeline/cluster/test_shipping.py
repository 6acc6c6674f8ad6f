"""What travels: the commit and nothing else, and how the remote is reached."""

from __future__ import annotations

import contextlib
import io
import re
import tarfile
from pathlib import Path

import cluster_project
import pytest
from cluster_project import git

from benchmark.pipeline.cluster import remote
from benchmark.pipeline.cluster.shipping import shipment, tracked_files
from benchmark.pipeline.cluster.site import unpack
from benchmark.runtime.errors import BenchmarkError

REMOTE = {"name": "store", "url": "/mnt/shared"}


@pytest.fixture(scope="module")
def committed(tmp_path_factory):
    return cluster_project.new(tmp_path_factory.mktemp("committed") / "project")


@pytest.fixture
def project(committed, tmp_path, monkeypatch):
    found = committed.copy(tmp_path / "project")
    monkeypatch.chdir(found.root)
    return found


def names(archive: bytes) -> set[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return {one.name for one in opened if one.isfile()}


def test_the_files_of_the_commit_travel(project, monkeypatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    sent = shipment(REMOTE)
    assert sent.commit == git(project, "rev-parse", "HEAD").strip()
    assert names(sent.archive) == tracked_files() - {""}
    assert sent.variables["OMP_NUM_THREADS"] == "3", "results depend on it"


@pytest.mark.parametrize("path", ["submissions/Tiny2026Linear/method.py", "params.yaml", "benchmark/tracks/tiny.yaml"])
def test_an_edit_that_is_not_committed_is_refused_by_its_name(project, path) -> None:
    with Path(path).open("a") as file:
        file.write("\n# edited\n")
    with pytest.raises(BenchmarkError, match=f"^{path} differs from the commit that other machines get; commit it"):
        shipment(REMOTE)


def test_new_and_removed_files_are_refused_too(project) -> None:
    Path("submissions/Tiny2026Linear/more.py").write_text("")
    with pytest.raises(BenchmarkError, match=r"^submissions/Tiny2026Linear/more\.py differs"):
        shipment(REMOTE)
    Path("benchmark/attacks/pgd.py").unlink()
    with pytest.raises(BenchmarkError, match=r"^\S+ and 1 more differs"):
        shipment(REMOTE)


def test_what_the_pipeline_writes_and_what_travels_by_itself_may_differ(project) -> None:
    for path in (
        "pipelines/tiny/Tiny2026Linear-small/dvc.lock",
        "pipelines/tiny/leaderboard.json",
        "work/x",
        "dvc.lock",
    ):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text("")
    for path in (".dvc/config", "resources.yaml"):
        with Path(path).open("a") as file:
            file.write("\n")
    shipment(REMOTE)
    Path("pipelines/tiny/rows.json").write_text("[]")
    with pytest.raises(BenchmarkError, match=r"^pipelines/tiny/rows\.json differs"):
        shipment(REMOTE)


def test_a_folder_without_a_commit_is_one_line(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(
        BenchmarkError, match=r"^git status failed: .*not a git repository.*; commit the checkout first$"
    ):
        shipment(REMOTE)


def test_without_git_the_line_says_so(project, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BenchmarkError, match=r"^git is not installed"):
        shipment(REMOTE)


def test_the_remote_there_is_the_remote_here_whatever_letters_it_has(project, tmp_path, monkeypatch) -> None:
    """A password with a comma or `#` would end there, or become a list."""
    wanted = {"name": "store", "url": "ssh://host/a b", "user": "me", "password": 'a,b #c"d'}
    monkeypatch.setenv("RVB_CHECKOUTS", str(tmp_path / "checkouts"))
    folder = unpack(shipment(wanted))
    with contextlib.chdir(folder):
        from dvc.repo import Repo

        with Repo() as repo:
            assert repo.config["core"]["remote"] == "store"
            assert repo.config["core"]["no_scm"]
            assert wanted.items() <= {"name": "store", **repo.config["remote"]["store"]}.items()
    assert (folder / ".dvc/config.local").stat().st_mode & 0o077 == 0, "it may hold passwords"


def test_a_folder_as_remote_is_the_same_folder_from_there(project, tmp_path, monkeypatch) -> None:
    config = Path(".dvc/config")
    config.write_text(re.sub("url = .*", "url = ../shared", config.read_text()))
    here = remote.settings()
    assert here["url"] == str(tmp_path / "project" / "shared")
    monkeypatch.setenv("RVB_CHECKOUTS", str(tmp_path / "checkouts"))
    with contextlib.chdir(unpack(shipment(here))):
        assert remote.settings() == here
