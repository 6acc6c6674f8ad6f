"""What the coordinator asks of an engine that carries tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from benchmark.pipeline.cluster.orders import Answer, Order
from benchmark.pipeline.cluster.resources import Resources
from benchmark.pipeline.cluster.site import Shipment


@dataclass(frozen=True)
class Arrived:
    """The answer to the order of a stage."""

    key: str
    answer: Answer


class Engine(Protocol):
    """Finds for each order a machine with the resources; retries nothing by itself."""

    @property
    def name(self) -> str: ...

    def fits(self, needs: Resources) -> bool:
        """Whether any machine has as much."""

    def places(self, needs: Resources) -> int:
        """How many such stages run at a time."""

    def start(self, shipment: Shipment) -> None:
        """Begins to bring the files to every machine."""

    def introduced(self, sent: str) -> list[dict[str, Any]]:
        """What each machine says of itself (node.py) then, and when it was `asked` and `answered` by this clock.

        `sent` is the digest of a folder that the remote has.
        """

    def submit(self, order: Order, needs: Resources) -> None: ...

    def wait(self, seconds: float) -> list[Arrived]:
        """Answers that arrived within so many seconds."""

    def started(self) -> Mapping[str, str]:
        """The machine of each stage that began since this was asked last."""

    def stop(self, end: bool) -> None:
        """Leaves the machines; `end`: what still runs there is ended first."""
