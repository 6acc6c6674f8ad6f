"""Which machines may take part: one that differs in what results depend on is refused with one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from two_machines import FIRST, Machine, out_of_reach

from benchmark.pipeline.cluster import node, remote
from benchmark.pipeline.locks import entry_of

OWN = {"environment": {"python": "3.12.1", "torch": "2.11", "arithmetic": "portable"}, "arithmetic": "portable"}
SAID = {**OWN, "host": "away", "clock": 1000.0, "remote": ""}


def problem(asked: float = 999.0, answered: float = 1001.0, **said: Any) -> str:
    found = node.problem({**SAID, **said}, OWN, asked, answered)
    assert "\n" not in found
    return found


def test_a_machine_like_this_one_takes_part() -> None:
    assert problem() == ""
    assert problem(asked=100.0, answered=1900.0) == "", "it took long to answer"


@pytest.mark.parametrize(("clock", "apart"), [(930.0, 69), (1100.0, 99)])
def test_a_clock_that_differs(clock, apart) -> None:
    assert problem(clock=clock).startswith(f"the clock of away differs from this machine's by {apart} s; set both")


def test_a_clock_that_differs_a_little_is_no_matter() -> None:
    assert problem(clock=950.0) == problem(clock=1050.0) == ""


def test_other_versions() -> None:
    said = {**OWN["environment"], "torch": "2.12"}
    assert problem(environment=said).startswith("away has torch 2.12, this machine 2.11; install the same there")
    del said["torch"]
    assert problem(environment=said).startswith("away has torch None")


def test_no_avx2_there_or_here() -> None:
    native = {"environment": {**OWN["environment"], "arithmetic": "native"}, "arithmetic": "native"}
    assert problem(**native).startswith("away has no AVX2 and computes in native arithmetic; leave it out")
    assert node.problem(SAID, native, 999.0, 1001.0).startswith("this machine has no AVX2")


def test_a_remote_that_is_out_of_reach_there() -> None:
    assert problem(remote="cannot write to the DVC remote store") == "away cannot write to the DVC remote store"


@pytest.fixture
def machine(tmp_path, monkeypatch) -> Machine:
    found = Machine(tmp_path / "one", tmp_path / "remote")
    monkeypatch.chdir(found.root)
    Path("params.yaml").write_text((Path(__file__).parents[3] / "params.yaml").read_text())
    return found


def introduced(sent: str) -> dict[str, Any]:
    Path("question").write_text(sent)
    node.introduce("question", "answer")
    return json.loads(Path("answer").read_text())


def test_this_machine_may_take_part_in_its_own_run(machine) -> None:
    machine.repro(FIRST)
    remote.push(FIRST, print)
    said = introduced(entry_of(FIRST)["outs"][0]["md5"])
    assert node.problem(said, node.here(), said["clock"], said["clock"]) == ""
    assert said["cores"] >= 1
    assert said["memory"] > 0
    assert said["processor"]


def test_a_folder_of_the_same_name_is_not_the_same_remote(machine) -> None:
    machine.repro(FIRST)
    assert "reaches another DVC remote" in introduced(entry_of(FIRST)["outs"][0]["md5"])["remote"]


def test_a_machine_that_cannot_reach_the_remote_says_so(machine) -> None:
    with out_of_reach(machine.remote):
        assert introduced("0.dir")["remote"].startswith("cannot write to the DVC remote store")
