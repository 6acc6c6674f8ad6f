"""Works side by side: as many as there are free cores, none before what it reads, and none left when one fails."""

from __future__ import annotations

import fcntl
import os
import time
from functools import partial
from pathlib import Path

import pytest

from benchmark import protocol
from benchmark.runtime.errors import BenchmarkError
from benchmark.sandbox import forks


def _wait_for(name: str) -> None:
    until = time.monotonic() + 60
    while not Path(name).exists():
        assert time.monotonic() < until, f"{name} never started"
        time.sleep(0.01)


def _meet(name: str, other: str) -> None:
    Path(name).touch()
    _wait_for(other)


def _alone(name: str) -> None:
    assert not list(Path().glob("running-*"))
    Path(f"running-{name}").touch()
    time.sleep(0.05)
    Path(f"running-{name}").unlink()


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_works_run_side_by_side_and_after_what_they_read() -> None:
    works = {"a": partial(_meet, "a", "b"), "b": partial(_meet, "b", "a"), "c": partial(_alone, "c")}
    done = list(forks.run_side_by_side(works, {"c": {"a", "b"}}, 2))
    assert sorted(done[:2]) == ["a", "b"]
    assert done[2:] == ["c"]


def test_calls_share_the_cores() -> None:
    forks.CORE_LOCKS.mkdir(parents=True)
    with (forks.CORE_LOCKS / "0").open("a") as first, (forks.CORE_LOCKS / "1").open("a") as second:
        for core in (first, second):
            fcntl.flock(core, fcntl.LOCK_EX)
        names = ["a", "b", "c"]
        assert list(forks.run_side_by_side({name: partial(_alone, name) for name in names}, {}, 2)) == names


def test_a_core_that_becomes_free_is_used() -> None:
    forks.CORE_LOCKS.mkdir(parents=True)
    with (forks.CORE_LOCKS / "0").open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        works = {"a": partial(_meet, "a", "b"), "b": partial(_meet, "b", "a")}
        done = forks.run_side_by_side({"first": partial(_wait_for, "go"), **works}, {}, 2)
        Path("go").touch()
        assert next(done) == "first"
        fcntl.flock(other, fcntl.LOCK_UN)
        assert sorted(done) == ["a", "b"]


def test_where_one_fails_the_others_end() -> None:
    def endless() -> None:
        Path("endless").write_text(str(os.getpid()))
        while True:
            time.sleep(1)

    def fails() -> None:
        _wait_for("endless")
        os._exit(7)

    with pytest.raises(SystemExit) as failure:
        list(forks.run_side_by_side({"endless": endless, "fails": fails}, {}, 2))
    assert failure.value.code == 7
    until = time.monotonic() + 60
    while Path("/proc", Path("endless").read_text(), "exe").exists():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_network_that_fails_ends_those_alone_that_read_it(capsys) -> None:
    works = {
        "fails": partial(os._exit, 7),
        "on": partial(_alone, "on"),
        "later": partial(_alone, "later"),
        "last": partial(_alone, "last"),
    }
    after, done = {"on": {"fails"}, "last": {"on"}}, []
    with pytest.raises(
        SystemExit, match=r"^error: 1 of 4 steps failed, see above: fails; all else that needs none of them is done$"
    ):
        done.extend(forks.run_side_by_side(works, after, 1, go_on=True))
    assert done == ["later"]


def test_an_interrupted_fork_ends_without_a_traceback(capfd) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt  # a signal would be ignored where the tests run in the background

    with pytest.raises(SystemExit) as ended:
        forks.run(interrupted)
    assert (ended.value.code, capfd.readouterr().err) == (130, "")


@pytest.mark.parametrize("text", ["", "0", "-1", "two", "1.5"])
def test_a_number_of_cores_that_is_none_is_refused(text, monkeypatch) -> None:
    monkeypatch.delenv(protocol.CORES, raising=False)
    assert protocol._cores() == 1
    monkeypatch.setenv(protocol.CORES, text)
    with pytest.raises(BenchmarkError, match=rf"^RVB_CORES is '{text}'; give the number of cores"):
        protocol._cores()
