"""A stage on Ray has its cores to itself."""

from __future__ import annotations

import itertools
import sys
import time

import pytest

from benchmark.pipeline.cluster import site

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'robust-vit-bench[ray]'")
pytestmark = pytest.mark.slow
ORDERS = 3


class SlowSite:
    """One that takes its time to say where it is."""

    def place(self) -> tuple[str, str]:
        time.sleep(1.5)
        return "socket", "folder"


class Heard:
    def started(self, key: str, machine: str) -> None:
        pass


def carry_out(place: tuple[str, str], program: str, text: str, gpus: str | None = None) -> str:
    began = time.time()
    time.sleep(3.0)
    return f"{began} {time.time()}"


@pytest.fixture
def one_core():
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield ray.get_runtime_context().get_node_id()
    ray.shutdown()


@pytest.mark.long
def test_no_more_stages_run_than_there_are_cores_while_they_ask_where_their_site_is(one_core, monkeypatch) -> None:
    """Ray gives a task's cores to another one while it waits in ray.get."""
    monkeypatch.setattr(site, "ask", carry_out)
    for module in (site, sys.modules[__name__]):
        ray.cloudpickle.register_pickle_by_value(module)
    many = {"num_cpus": 0, "max_concurrency": 10}
    here = ray.remote(SlowSite).options(name=f"site-{one_core}", **many).remote()
    heard = ray.remote(Heard).options(**many).remote()
    ray.get(here.place.remote())
    task = ray.remote(site.carried_out).options(num_cpus=1)
    for _ in range(2):  # the first time Ray still starts its workers, one by one
        answers = ray.get([task.remote(heard, f"order {number}", "") for number in range(ORDERS)])
    spans = sorted(tuple(map(float, answer.split())) for answer in answers)
    assert all(end <= began for (_, end), (began, _) in itertools.pairwise(spans)), spans
