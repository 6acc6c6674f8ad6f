"""Orders as tasks of Ray: Ray finds the machine with the resources, a checkout there does the work (site.py)."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from benchmark.pipeline.cluster import site
from benchmark.pipeline.cluster.engine import Arrived
from benchmark.pipeline.cluster.orders import Answer, Order
from benchmark.pipeline.cluster.resources import Resources
from benchmark.pipeline.cluster.site import Shipment, Site
from benchmark.runtime.errors import BenchmarkError

NAMESPACE = "robust-vit-bench"
WAIT = 30.0  # seconds for a coordinator that was killed to be forgotten
UNMANNED = site.Unmanned.__name__  # by name: a worker's class is a copy of it


class Ray:
    """An engine (engine.py) on a cluster that stands, or on `jobs` cores of this machine."""

    name = "ray"

    def __init__(self, address: str, jobs: int) -> None:
        """Raises BenchmarkError where Ray is not installed or there is no cluster at the address."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        logging.getLogger("ray").setLevel(logging.ERROR)
        try:
            import ray
        except ImportError:
            raise BenchmarkError("Ray is not installed here; run: pip install 'robust-vit-bench[ray]'") from None
        self.ray: Any = ray
        _check_answers(address)
        if not address:
            os.environ.setdefault("RAY_worker_niceness", "0")  # 15 otherwise: beside other work stages would starve
        where = {"address": address} if address else {"address": "local", "num_cpus": jobs}
        try:
            ray.init(
                **where, namespace=NAMESPACE, include_dashboard=None if address else False, log_to_driver=False,
                logging_level=logging.ERROR,
            )  # fmt: skip
        except (ConnectionError, ValueError, RuntimeError) as error:
            words = " ".join(str(error).split())[:200]
            raise BenchmarkError(f"no Ray cluster answers at {address or 'this machine'}: {words}") from None
        self.ray.cloudpickle.register_pickle_by_value(site)
        self._pending: dict[Any, str] = {}
        self._sites: dict[str, Any] = {}  # by Ray's name of the machine
        self._here = self._on(ray.get_runtime_context().get_node_id())  # what lives as long as the coordinator
        try:
            self._holder = self._alone()
        except BenchmarkError:
            ray.shutdown()
            raise
        self._events: Any = ray.remote(Events).options(num_cpus=0, scheduling_strategy=self._here).remote()

    def _alone(self) -> Any:
        """Holds a name on the cluster; a BenchmarkError where another coordinator holds it."""
        holder = self.ray.remote(Holder).options(name="coordinator", num_cpus=0, scheduling_strategy=self._here)
        until = time.monotonic() + WAIT
        while True:
            try:
                found = holder.remote(os.uname().nodename)
                self.ray.get(found.who.remote())
                return found
            except ValueError:
                if time.monotonic() > until:
                    raise BenchmarkError(
                        f"another `rvb repro --engine ray` runs on this cluster{self._whose()}; wait for it or end it"
                    ) from None
                time.sleep(1)

    def _whose(self) -> str:
        with contextlib.suppress(ValueError, self.ray.exceptions.RayError):  # it has just ended
            return f", from {self.ray.get(self.ray.get_actor('coordinator').who.remote())}"
        return ""

    def machines(self) -> list[dict[str, float]]:
        """Resources of each machine, as Ray counts them."""
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]

    def fits(self, needs: Resources) -> bool:
        wanted = {"CPU": needs.cores, "GPU": needs.gpus, "memory": needs.memory * 2**30}
        return any(all(one.get(kind, 0.0) >= much for kind, much in wanted.items()) for one in self.machines())

    def places(self, needs: Resources) -> int:
        """How many such stages run at a time."""
        found = 0
        for one in self.machines():
            room = [one.get("CPU", 0.0) // needs.cores, one.get("memory", 0.0) // (needs.memory * 2**30)]
            found += int(min([*room, *([one.get("GPU", 0.0) // needs.gpus] if needs.gpus else [])]))
        return found

    def start(self, shipment: Shipment) -> None:
        self._shipment = self.ray.put(shipment)
        self._man()

    def introduced(self, sent: str) -> list[dict[str, Any]]:
        introduce = self.ray.remote(site.introduced)
        said: list[dict[str, Any]] = []
        for node in self._sites:
            asked = time.time()
            try:
                answer = self.ray.get(introduce.options(num_cpus=0, scheduling_strategy=self._on(node)).remote(sent))
                said.append({**json.loads(answer), "asked": asked, "answered": time.time()})
            except self.ray.exceptions.RayError as error:
                raise BenchmarkError(f"a machine of the cluster cannot take part: {_reason(error)}") from None
        return said

    def _man(self) -> None:
        """A site on every machine: on those too that have come since, and anew where one was killed."""
        for name, (_, alive) in [*self._sites.items()]:
            if self.ray.wait([alive], timeout=0)[0]:
                try:
                    self.ray.get(alive)
                except self.ray.exceptions.RayError:
                    self.ray.kill(self._sites.pop(name)[0])
        for node in self.ray.nodes():
            name = node["NodeID"]
            if node["Alive"] and name not in self._sites:
                options = {"name": f"site-{name}", "get_if_exists": True, "num_cpus": 0, "max_concurrency": 1000}
                found = (
                    self.ray.remote(Site).options(**options, scheduling_strategy=self._on(name)).remote(self._shipment)
                )
                self._sites[name] = found, found.ended.remote()

    def _on(self, node: str) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node, soft=False)

    def submit(self, order: Order, needs: Resources) -> None:
        carry_out = self.ray.remote(site.carried_out).options(
            name=order.key, num_cpus=needs.cores, num_gpus=needs.gpus, memory=needs.memory * 2**30, max_retries=0,
        )  # fmt: skip
        self._pending[carry_out.remote(self._events, order.key, order.to_json())] = order.key

    def wait(self, seconds: float) -> list[Arrived]:
        """Answers that arrived within so many seconds, at least one unless none did."""
        if not self._pending:
            return []
        self._man()
        done, _ = self.ray.wait([*self._pending], num_returns=1, timeout=seconds)
        if done:  # and all others that are there by now
            done, _ = self.ray.wait([*self._pending], num_returns=len(self._pending), timeout=0)
        return [Arrived(self._pending.pop(one), self._answer(one)) for one in done]

    def _answer(self, reference: Any) -> Answer:
        try:
            text = self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            gone = isinstance(error.cause, self.ray.exceptions.RayError) or type(error.cause).__name__ == UNMANNED
            return Answer(error=_reason(error), lost=gone)
        except self.ray.exceptions.RayError as error:
            return Answer(error=_reason(error), lost=True)
        return Answer.from_json(text) if text else Answer(error="its worker was killed", lost=True)

    def started(self) -> Mapping[str, str]:
        """The machine of each stage that began since this was asked last."""
        found: dict[str, str] = self.ray.get(self._events.drain.remote())
        return found

    def stop(self, end: bool) -> None:
        """Leaves the cluster; `end`: stages that still run are ended first."""
        for found, _ in self._sites.values() if end else []:
            with contextlib.suppress(self.ray.exceptions.RayError):  # a machine that has gone
                self.ray.get(found.end.remote(), timeout=20)
        self.ray.shutdown()


class Holder:
    """Lives as long as its coordinator."""

    def __init__(self, host: str) -> None:
        self.host = host

    def who(self) -> str:
        return self.host


class Events:
    """Where stages have begun."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def started(self, key: str, machine: str) -> None:
        self.found[key] = machine

    def drain(self) -> dict[str, str]:
        found, self.found = self.found, {}
        return found


def _check_answers(address: str) -> None:
    """A BenchmarkError where nobody listens at `<host>:<port>`: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():  # a word of Ray's own, such as `auto`
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise BenchmarkError(f"no Ray cluster answers at {address}: {error.strerror or error}") from None


def _reason(error: BaseException) -> str:
    """The last line of what Ray says, which is the cause's own."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    known = ("RuntimeError: ", f"{site.__name__}.{UNMANNED}: ")
    return lines[-1].removeprefix(known[0]).removeprefix(known[1]) if lines else type(error).__name__
