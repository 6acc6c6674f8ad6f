"""dvc.lock files that a killed dvc left cut short, and its list of running commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmark.pipeline import locks
from benchmark.runtime.errors import BenchmarkError


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("pipelines/tiny/row", "pipelines/tiny/whole", ".dvc/tmp"):
        Path(folder).mkdir(parents=True)
    Path("pipelines/tiny/whole/dvc.lock").write_text("schema: '2.0'\nstages:\n  train: {cmd: x}\n")


@pytest.mark.parametrize(
    "text", ["", "schema: '2.0'\n", "schema: '2.0'\nstages:\n  train:\n    cmd: [", "schema: '2.0'\nsta"]
)
def test_a_lock_cut_short_is_removed_and_others_stay(text) -> None:
    cut, said = Path("pipelines/tiny/row/dvc.lock"), []
    cut.write_text(text)
    assert locks.cut_short() == [cut]
    locks.remove_cut(said.append)
    assert said == [f"removed {cut}, which a killed dvc had left cut short"]
    assert locks.cut_short() == []
    assert Path("pipelines/tiny/whole/dvc.lock").exists()


def test_a_list_of_running_commands_that_is_cut_short_is_named_with_its_mend() -> None:
    locks.check_rwlock()
    for whole in ("", "{}"):
        locks.RWLOCK.write_text(whole)
        locks.check_rwlock()
    locks.RWLOCK.write_text('{"a": {"re')
    with pytest.raises(BenchmarkError, match=r"^\.dvc/tmp/rwlock is cut short, .* once no dvc runs here, remove it$"):
        locks.check_rwlock()
