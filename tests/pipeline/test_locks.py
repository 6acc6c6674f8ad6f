"""Entries of lock files, as DVC itself writes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from two_machines import FIRST, SECOND, Machine

from benchmark.pipeline import locks
from benchmark.pipeline.locks import entry_of, put_entries


@pytest.fixture
def made(tmp_path, monkeypatch) -> Machine:
    """A repository in which DVC has run both stages, the second one's lock entry first."""
    machine = Machine(tmp_path / "one", tmp_path / "remote")
    monkeypatch.chdir(machine.root)
    machine.repro(FIRST, SECOND)
    return machine


def test_entries_that_are_noted_here_are_dvcs_to_the_byte(made) -> None:
    wanted, first, second = made.lock.read_bytes(), entry_of(FIRST), entry_of(SECOND)
    assert {*first} == {"cmd", "deps", "outs"}
    made.lock.unlink()
    put_entries({SECOND: second})
    assert entry_of(FIRST) == {}
    put_entries({FIRST: first})
    assert made.lock.read_bytes() == wanted, "in the order of dvc.yaml, whatever came first"
    made.lock.unlink()
    put_entries({SECOND: second, FIRST: first})
    assert made.lock.read_bytes() == wanted
    made.repro(FIRST, SECOND)
    assert made.ran == ["first", "second"], "DVC takes them for its own"
    assert made.lock.read_bytes() == wanted


def test_entries_that_stand_are_not_written_again(made) -> None:
    before = made.lock.stat().st_mtime_ns
    put_entries({FIRST: entry_of(FIRST)})
    assert made.lock.stat().st_mtime_ns == before


def test_a_lock_that_a_kill_cut_short_says_nothing_and_is_written_anew(made) -> None:
    first, wanted = entry_of(FIRST), made.lock.read_text()
    made.lock.write_text(wanted[:150] + "\n   - [")
    assert entry_of(FIRST) == {}
    put_entries({FIRST: first})
    assert entry_of(FIRST) == first
    assert entry_of(SECOND) == {}


def test_a_stage_or_file_without_a_lock_has_no_entry(made) -> None:
    assert entry_of("pipelines/tiny/row/dvc.yaml:third") == {}
    assert entry_of("pipelines/tiny/none/dvc.yaml:first") == {}


def test_both_kinds_of_cut_files_are_mended_while_dvc_may_run(made) -> None:
    rwlock, said = Path(".dvc/tmp/rwlock"), []
    locks.mend_beside_dvc(said.append)
    assert said == []
    rwlock.write_text('{"read')
    made.lock.write_text("stages: [")
    locks.mend_beside_dvc(said.append)
    assert not rwlock.exists()
    assert not made.lock.exists()
    assert len(said) == 2
    locks.mend_beside_dvc(said.append)
    made.repro(FIRST, SECOND)
    assert made.ran == ["first", "second"]
