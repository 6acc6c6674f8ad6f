"""Results from machine to machine through DVC's remote: found, waited for, and never taken for what they are not."""

from __future__ import annotations

import contextlib
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from small_disk import enlarge, small_disk
from two_machines import FIRST, SECOND, Machine, out_of_reach

from benchmark.pipeline.cluster import remote
from benchmark.pipeline.locks import entry_of, put_entries
from benchmark.runtime.errors import BenchmarkError


@pytest.fixture
def one(tmp_path, monkeypatch) -> Machine:
    """A machine on which nothing has run, as working directory."""
    machine = Machine(tmp_path / "one", tmp_path / "remote")
    monkeypatch.chdir(machine.root)
    return machine


@pytest.fixture
def made(one) -> Machine:
    """The same with both stages done and the first one sent."""
    one.repro(FIRST, SECOND)
    remote.push(FIRST, print)
    return one


@pytest.fixture
def other(made, tmp_path, monkeypatch) -> Machine:
    """A second machine with the same files, which is the working directory then."""
    machine = Machine(tmp_path / "two", tmp_path / "remote")
    monkeypatch.chdir(machine.root)
    return machine


@pytest.fixture
def pauses(monkeypatch) -> list[float]:
    """Those that were made while waiting for a remote; none takes any time, but the clock believes in them."""
    made: list[float] = []
    monkeypatch.setattr("benchmark.pipeline.cluster.remote.time.sleep", made.append)
    monkeypatch.setattr("benchmark.pipeline.cluster.remote.time.monotonic", lambda: sum(made))
    return made


def fetch(machine: Machine, reads: tuple[str, ...], key: str, of: Machine) -> bool:
    """What a worker does for an order, with what the coordinator's lock says of the stages that it reads."""
    with contextlib.chdir(of.root):
        locks = {stage: entry_of(stage) for stage in reads}
    return remote.fetch(reads, key, locks, print)


def test_results_are_fetched_where_they_are_read_and_what_was_made_elsewhere_is_not_made_again(made, other) -> None:
    assert not fetch(other, (FIRST,), SECOND, made), "nobody has sent what the second stage made"
    assert other.results("first") == made.results("first")
    other.repro(FIRST)
    assert other.ran == [], "DVC knows what it fetched"
    other.repro(SECOND)
    assert other.ran == ["second"]
    assert other.lock.read_bytes() == made.lock.read_bytes()
    remote.push(SECOND, print)
    remote.push(SECOND, print)  # a second time changes nothing


def test_what_the_run_cache_knows_is_put_in_its_place(made, other, monkeypatch) -> None:
    monkeypatch.chdir(made.root)
    remote.push(SECOND, print)
    monkeypatch.chdir(other.root)
    assert fetch(other, (FIRST,), SECOND, made)
    assert other.results("second") == made.results("second")
    other.repro(SECOND)
    assert other.ran == []
    assert other.lock.read_bytes() == made.lock.read_bytes()


def test_what_the_run_cache_knows_but_nobody_has_any_more_is_made_again(made, other, monkeypatch) -> None:
    monkeypatch.chdir(made.root)
    remote.push(SECOND, print)
    digest = entry_of(SECOND)["outs"][0]["md5"]
    monkeypatch.chdir(other.root)
    (other.remote / "files/md5" / digest[:2] / digest[2:]).unlink()
    assert not fetch(other, (FIRST,), SECOND, made)
    other.repro(SECOND)
    assert other.ran == ["second"]


def test_results_that_are_nowhere_are_one_clear_line(made, other, pauses) -> None:
    shutil.rmtree(other.remote / "files")
    with pytest.raises(BenchmarkError, match=f"^could not fetch what {SECOND} reads from the DVC remote"):
        fetch(other, (FIRST,), SECOND, made)
    assert other.ran == []


def test_a_remote_out_of_reach_is_waited_for_and_nothing_is_lost(one, monkeypatch, tmp_path) -> None:
    one.repro(FIRST)
    said: list[str] = []
    with out_of_reach(one.remote) as bring_back:
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 3:
                bring_back()

        monkeypatch.setattr("benchmark.pipeline.cluster.remote.time.sleep", pause)
        remote.push(FIRST, said.append)
    assert pauses == [1.0, 2.0, 4.0]
    assert len(said) == 3
    assert said[0].startswith(f"could not send results of {FIRST} to the DVC remote: ")
    assert said[0].endswith("; again in 1 s")
    two = Machine(tmp_path / "two", one.remote)
    monkeypatch.chdir(two.root)
    assert not fetch(two, (FIRST,), SECOND, one)
    assert two.results("first") == one.results("first")


def test_patience_ends_with_one_line(one, pauses) -> None:
    one.repro(FIRST)
    with out_of_reach(one.remote), pytest.raises(BenchmarkError, match=r"^could not send .* for 100 s: \w+: ") as error:
        remote.push(FIRST, print, patience=100.0)
    assert "\n" not in str(error.value)
    assert 60 < sum(pauses) <= 100
    assert max(pauses) == 30.0


def test_errors_of_any_kind_of_storage_are_waited_out(one, pauses) -> None:
    class EndpointConnectionError(Exception):
        """As botocore has it: no OSError."""

    answers = [EndpointConnectionError("no route"), EndpointConnectionError("no route"), "there"]

    def attempt() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert remote.patiently(attempt, "ask", print, 60.0) == "there"
    assert pauses == [1.0, 2.0]


def test_a_full_remote_is_named_at_once_and_takes_the_rest_when_there_is_room(one, pauses) -> None:
    """DVC itself says only how many files did not arrive."""
    with small_disk(one.remote, 16):
        one.repro(FIRST)
        with pytest.raises(
            BenchmarkError, match=r"no space is left \(OSError: .*\); make room and run the same"
        ) as error:
            remote.push(FIRST, print)
        assert pauses == [], "waiting does not mend it"
        assert "\n" not in str(error.value)
        assert not remote.holds(entry_of(FIRST)["outs"][0]["md5"]), "a listing says that its files are there"
        enlarge(one.remote, 1024)
        remote.push(FIRST, print)
        assert remote.holds(entry_of(FIRST)["outs"][0]["md5"])
        assert one.ran == ["first"]


def test_what_a_killed_dvc_left_cut_short_is_mended_before_an_order(made, other) -> None:
    fetch(other, (FIRST,), SECOND, made)
    rwlock = other.root / ".dvc/tmp/rwlock"
    other.lock.write_text(other.lock.read_text()[:100] + "\n   - [")
    rwlock.write_text('{"read": {"')
    said: list[str] = []
    assert not remote.fetch((), FIRST, {}, said.append) or other.ran == []
    assert any("rwlock, which a killed dvc" in line for line in said)
    assert any("dvc.lock, which a killed dvc" in line for line in said)
    other.repro(FIRST)
    assert other.ran == [], "it is in the run-cache"


def test_what_the_remote_or_the_cache_here_has_is_found(made) -> None:
    first, second = (entry_of(key)["outs"][0]["md5"] for key in (FIRST, SECOND))
    listed = remote.find([first, second, "0" * 32 + ".dir"], print)
    assert {*listed} == {first, second}
    assert {*listed[first]} == {"copy", "one"}
    assert remote.holds(first)
    assert not remote.holds(second)
    shutil.rmtree(Path(".dvc/cache"))
    assert {*remote.find([first, second], print)} == {first}


def test_a_remote_that_can_be_used_is_left_as_it_was(one) -> None:
    remote.check()
    assert not [*one.remote.iterdir()]


def test_a_remote_that_cannot_be_written_is_one_line(one) -> None:
    with (
        out_of_reach(one.remote),
        pytest.raises(BenchmarkError, match=r"^cannot write to the DVC remote store, /") as error,
    ):
        remote.check()
    assert "\n" not in str(error.value)


def test_a_remote_that_cannot_be_read_is_one_line(one, monkeypatch) -> None:
    monkeypatch.setattr("dvc_objects.fs.base.FileSystem.cat_file", lambda *_, **__: b"other bytes")
    with pytest.raises(BenchmarkError, match=r"^cannot read the DVC remote store, .*came back changed"):
        remote.check()


def test_without_a_remote_the_line_says_how_to_have_one(one) -> None:
    (one.root / ".dvc/config").write_text("[core]\n    no_scm = true\n")
    with pytest.raises(BenchmarkError, match=r"^no DVC remote carries .*dvc remote add --default"):
        remote.settings()


@pytest.mark.parametrize("kind", ["version_aware", "worktree"])
def test_a_remote_that_keeps_names_and_not_digests_is_refused(one, kind) -> None:
    config = one.root / ".dvc/config"
    config.write_text(
        f"[core]\n    no_scm = true\n    remote = store\n['remote \"store\"']\n    url = s3://bucket/rvb\n    {kind} = true\n"
    )
    with pytest.raises(BenchmarkError, match=f"^the DVC remote store is {kind}: it keeps files under their own names"):
        remote.settings()


def test_settings_are_those_by_which_another_machine_reaches_the_same_remote(one) -> None:
    config = one.root / ".dvc/config"
    config.write_text(
        "[core]\n    no_scm = true\n    remote = store\n"
        "['remote \"disk\"']\n    url = ../../remote\n['remote \"store\"']\n    url = remote://disk/below\n    verify = true\n"
    )
    found = remote.settings()
    assert (found["name"], found["url"], found["verify"]) == ("store", f"{one.remote}/below", "true")


def test_what_dvc_noted_is_not_read_while_it_writes(made) -> None:
    """It writes a lock file where it stands, so that another stage of the row would find it cut short."""
    whole = made.lock.read_text()
    with ThreadPoolExecutor(1) as pool:
        with remote.opened() as repo, repo.lock:
            made.lock.write_text(whole[:40])
            found = pool.submit(remote.push, FIRST, print)
            time.sleep(0.3)
            assert not found.done()
            made.lock.write_text(whole)
        assert found.result(60) == entry_of(FIRST) != {}


def test_what_the_coordinator_brings_is_what_its_lock_speaks_of(made, other) -> None:
    with contextlib.chdir(made.root):
        entry = entry_of(FIRST)
    put_entries({FIRST: entry})
    remote.bring([FIRST], print)
    assert other.results("first") == made.results("first")
    for folder in (other.remote / "files", other.root / ".dvc/cache", other.root / "work"):
        shutil.rmtree(folder)
    with pytest.raises(BenchmarkError, match=f"^could not fetch results of {FIRST} from the DVC remote"):
        remote.bring([FIRST], print, patience=0.0)
