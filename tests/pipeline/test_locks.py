"""dvc.lock files that a killed dvc left cut short, and its list of running commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmark.pipeline import dvc
from benchmark.runtime.errors import BenchmarkError


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("pipelines/tiny/row", "pipelines/tiny/whole", ".dvc/tmp"):
        Path(folder).mkdir(parents=True)
    Path("pipelines/tiny/whole/dvc.lock").write_text("schema: '2.0'\nstages:\n  train: {cmd: x}\n")


def test_a_lock_cut_short_is_removed_and_others_stay() -> None:
    cut = Path("pipelines/tiny/row/dvc.lock")
    for text in ("", "schema: '2.0'\n", "schema: '2.0'\nstages:\n  train:\n    cmd: [", "schema: '2.0'\nsta"):
        reported: list[str] = []
        cut.write_text(text)
        dvc.remove_cut(reported.append)
        assert reported == [f"removed {cut}, which a killed dvc had left cut short"]
        assert not cut.exists()
        assert Path("pipelines/tiny/whole/dvc.lock").exists()


def test_a_list_of_running_commands_that_is_cut_short_is_named_with_its_mend() -> None:
    dvc.check_rwlock()
    for whole in ("", "{}"):
        dvc.RWLOCK.write_text(whole)
        dvc.check_rwlock()
    for cut in ('{"a": {"re', "[]"):
        dvc.RWLOCK.write_text(cut)
        with pytest.raises(BenchmarkError, match=r"^\.dvc/tmp/rwlock is cut short, .* no dvc runs here, remove it$"):
            dvc.check_rwlock()


def test_the_conflict_markers_of_a_merge_are_named_and_nothing_is_removed() -> None:
    lock = Path("pipelines/tiny/row/dvc.lock")
    lock.write_text("stages:\n<<<<<<< HEAD\n  train: {cmd: x}\n=======\n  train: {cmd: y}\n>>>>>>> other\n")
    with pytest.raises(BenchmarkError, match=r"conflict markers of a merge; take one side, .*row/dvc\.lock"):
        dvc.remove_cut(print)
    assert lock.exists()


def test_a_checkout_that_dvc_cannot_work_in_is_named_beforehand(tmp_path, monkeypatch) -> None:
    with pytest.raises(BenchmarkError, match="no git repository here, as in a downloaded ZIP"):
        dvc.check_place()
    Path(".dvc/config").write_text("[core]\n    no_scm = true\n")
    dvc.check_place()
    Path(".dvc/config").unlink()
    Path(".git").touch()  # a worktree's
    dvc.check_place()
    monkeypatch.setattr(dvc.os, "access", lambda *_: False)
    with pytest.raises(BenchmarkError, match="is read-only for this user"):
        dvc.check_place()


def test_of_dvcs_output_the_error_is_shown_with_what_it_announces() -> None:
    advert = "\nHaving any troubles? Hit us up at https://dvc.org/support, we are always happy to help!\n"
    blocked = "ERROR: '/w/train' is busy, it is being blocked by:\n  (PID 7): dvc repro\n\nIf there are no processes\n"
    assert dvc.failure(blocked + advert) == "'/w/train' is busy, it is being blocked by: (PID 7): dvc repro"
    read_only = "unexpected error - Read-only file system"
    assert dvc.failure(f"Reproducing\n{read_only}{advert}") == read_only
