"""Several processes that train one network, without a sandbox and without a row."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmark.sandbox.channel import Channel
from benchmark.sandbox.confinement import Confinement
from benchmark.sandbox.process import Process
from benchmark.sandbox.training import exchange
from benchmark.training.ranks import Collective, Ranks, Tensors

Answer = tuple[dict[str, Any], Tensors]
MOST = 2**26  # bytes


def together(count: int, work: Callable[[Ranks], Answer], meeting: Path | None = None) -> list[Answer]:
    """What `work` returns in each of `count` processes, by rank; with a `meeting` they exchange among themselves."""

    def run(rank: int, channel: Channel) -> None:
        def ask(kind: str, tensors: Tensors) -> Tensors:
            channel.send({"exchange": kind}, tensors)
            return channel.receive(MOST)[1]

        asks = Collective(rank, count, meeting, 60.0, on_gpus=False) if meeting else ask
        answer, tensors = work(Ranks(rank, count, asks))
        channel.send({"answer": answer}, tensors)

    nothing = Confinement((), memory=2**40)
    ranks = [Process(partial(run, rank), nothing, owner=f"rank {rank}", seconds=60) for rank in range(count)]
    try:
        while "exchange" in (first := ranks[0].receive())[0]:
            exchange(ranks, *first, time.monotonic() + 60)
        return [(message["answer"], tensors) for message, tensors in [first, *(rank.receive() for rank in ranks[1:])]]
    finally:
        for rank in ranks:
            rank.close()
