"""What a machine says of itself before it gets an order: `introduce` runs in its checkout."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from benchmark.loading.run_settings import run_settings
from benchmark.pipeline.cluster import remote
from benchmark.runtime import arithmetic, files
from benchmark.runtime.device import processor
from benchmark.runtime.environment import environment
from benchmark.runtime.errors import BenchmarkError

CLOCKS = 60.0  # seconds that clocks may differ: storage in the cloud refuses a wrong one


def introduce(question: str, answer: str) -> None:
    """Writes what `problem` looks at; the question is the digest of a folder that the coordinator sent there, if any."""
    try:
        remote.check()
        sent = Path(question).read_text()
        reached = (
            "" if not sent or remote.holds(sent) else "reaches another DVC remote: what this machine sent is not there"
        )
    except BenchmarkError as error:
        reached = str(error)
    found = {
        "host": platform.node(),
        "clock": time.time(),
        "environment": environment(),
        "arithmetic": arithmetic.possible(run_settings().arithmetic),
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory": round(psutil.virtual_memory().total / 2**30, 1),
        "remote": reached,
    }
    files.write_json(Path(answer), found)


def here() -> dict[str, Any]:
    """What must be the same everywhere, as it is on this machine."""
    wanted = run_settings().arithmetic
    return {
        "environment": {**environment(), "arithmetic": arithmetic.possible(wanted)},
        "arithmetic": arithmetic.possible(wanted),
    }


@cache
def packages() -> dict[str, str]:
    """All that a result can depend on here beside code, settings and arithmetic, which an inputs file names."""
    return {name: version for name, version in environment().items() if name != "arithmetic"}


def problem(said: Mapping[str, Any], own: Mapping[str, Any], asked: float, answered: float) -> str:
    """Why a machine cannot take part, in one line; "" where it can.

    Args:
        own: what `here` says on the coordinator.
        asked: the coordinator's clock when it asked, in seconds.
        answered: and when it had the answer.
    """
    if said["remote"]:
        return f"{said['host']} {said['remote']}"
    apart = max(asked - said["clock"], said["clock"] - answered, 0.0)
    if apart > CLOCKS:
        return f"the clock of {said['host']} differs from this machine's by {apart:.0f} s; set both by a time server"
    if said["arithmetic"] != own["arithmetic"]:
        lacking = said["host"] if said["arithmetic"] == "native" else "this machine"
        return f"{lacking} has no AVX2 and computes in native arithmetic; leave it out, or set `arithmetic: native`"
    if differs := other_packages(said["environment"], own["environment"]):
        name, there, here = differs
        return f"{said['host']} has {name} {there}, this machine {here}; install the same there (constraints.txt)"
    return ""


def other_packages(there: Mapping[str, str], here: Mapping[str, str]) -> tuple[str, str | None, str] | None:
    """The first of what results depend on that differs between two machines, and both its versions."""
    return next(
        ((name, there.get(name), version) for name, version in here.items() if there.get(name) != version), None
    )
