"""Carries out one order in a checkout: `python -m benchmark.pipeline.cluster.worker <order.json> <answer.json>`.

Results that the stage reads come from the remote, DVC runs the stage, its results go to the remote. What the remote's
run-cache already knows is fetched instead of computed; what a killed worker left of the stage in this checkout is gone on
with. Several orders may be carried out in one checkout side by side.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmark.loading.run_settings import computes_on
from benchmark.pipeline import dvc, inputs
from benchmark.pipeline.cluster import node, parts, remote
from benchmark.pipeline.cluster.orders import Answer, Order
from benchmark.pipeline.state import difference
from benchmark.runtime import files, scratch, warm_client
from benchmark.runtime.clock import BLOCKS, SECONDS
from benchmark.runtime.errors import FULL_MEMORY, BenchmarkError, said
from benchmark.stages import catalogue
from benchmark.stages.base import inputs_file, part_folder

KILLED = re.compile(r"exited with (?:-9|137|-15|143)\b|was ended by SIGKILL")
LOG = 1_000_000  # characters of a stage's output that travel


def main(order: str, answer: str) -> None:
    """The answer is written aside and renamed: where it is missing, the worker was killed."""
    files.write(Path(answer), carry_out(Order.from_json(Path(order).read_text())).to_json())


def carry_out(order: Order) -> Answer:
    """Does all that an order asks for; what goes wrong stands in the answer."""
    began = time.monotonic()
    lines: list[str] = []
    log = dvc.LOGS / f"{_name(order)}.log"
    log.unlink(missing_ok=True)  # of an earlier order
    error = ""
    try:
        found = _carried_out(order, lines.append)
    except BenchmarkError as problem:
        error = str(problem).replace(f" [log: {log}]", "")  # the coordinator names its own copy
    except Exception as problem:  # of DVC or of the machine: the row fails, with its reason
        error = said(problem)
    text = "\n".join([*lines, log.read_text(errors="replace") if log.exists() else ""])
    if error:
        found = Answer(
            error=error, lost=bool(KILLED.search(error) or FULL_MEMORY.search(error) or FULL_MEMORY.search(text))
        )
    return replace(
        found,
        key=order.key,
        device=computes_on(order.stage),
        seconds=round(time.monotonic() - began, 2),
        log=text[-LOG:],
    )


def _carried_out(order: Order, report: remote.Report) -> Answer:
    one = catalogue.planned(order.track, order.row, order.stage)
    _write_inputs(order, one)
    _check_packages(order)
    with _alone():
        known = remote.fetch(order.reads, order.stage_key, order.locks, report)
    if order.part:
        return Answer() if known else _part_done(order, one, report)
    if order.parts and not known:
        scratch_folder = scratch.place(f"{order.track}/{order.row}/{order.stage}", _key(one))
        parts.bring(_sent_key(one), order.parts, scratch_folder / BLOCKS, report)
    warm = os.environ.get(warm_client.VARIABLE, "")
    dvc.run(["--wait-for-lock", "repro", "-s", order.key], _name(order), report, warm, order.row)
    entry = remote.push(order.key, report)
    if order.parts:
        parts.remove(_sent_key(one), report)
    times = one.row.folder / "times" / f"{one.name}.json"
    return Answer(entry=entry, times="" if known or not times.exists() else times.read_text())


def _part_done(order: Order, one: catalogue.Planned, report: remote.Report) -> Answer:
    """Works on some of a stage's images, unless that has been done, and sends what it found."""
    if not parts.known(_sent_key(one), order.part, report):
        folder = part_folder(one.row, one.name, order.part)
        if not _is_finished(order, one, folder):
            _compute_part(order)
        parts.send(_sent_key(one), order.part, folder, report)
        shutil.rmtree(folder)
    return Answer()


def _is_finished(order: Order, one: catalogue.Planned, folder: Path) -> bool:
    """Whether an earlier order left all of the part here, and could not send it."""
    finished = scratch.place(f"{order.track}/{order.row}/{order.stage}@{order.part}", "finished")
    whole = (folder / SECONDS.replace("*", order.part)).exists()
    return whole and finished.exists() and finished.read_text() == _key(one)


def _compute_part(order: Order) -> None:
    log = dvc.LOGS / f"{_name(order)}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "benchmark.stages", order.stage, order.track, order.row, order.part]
    with log.open("w") as kept:
        done = subprocess.run(command, stdout=kept, stderr=subprocess.STDOUT, env=dvc.environment(), check=False)
    if status := done.returncode:
        words = dvc.failure(log.read_text())
        raise BenchmarkError(words if status == 1 else f"{order.stage} exited with {status}: {words}")


def _key(one: catalogue.Planned) -> str:
    """Of partial work in this checkout."""
    return scratch.key(one.stage.identity(one.row, one.name))


def _sent_key(one: catalogue.Planned) -> str:
    """Of parts in the remote, which may be of a machine that had other packages then."""
    return scratch.key(one.stage.identity(one.row, one.name) | {"packages": node.packages()})


def _check_packages(order: Order) -> None:
    """A BenchmarkError where this machine, which may have come after the others were asked, has not the order's packages."""
    if differs := node.other_packages(node.packages(), order.packages):
        name, here, wanted = differs
        raise BenchmarkError(
            f"{platform.node()} has {name} {here}, the coordinator {wanted}; install the same there (constraints.txt)"
        )


def _write_inputs(order: Order, one: catalogue.Planned) -> None:
    """A BenchmarkError where this checkout's code or settings, or what its processor computes in, are not the order's."""
    here = inputs.of_stage(one)
    if files.to_json(here).decode() != order.inputs:
        words = difference(json.loads(order.inputs), here)
        raise BenchmarkError(
            f"{platform.node()} would run {order.stage} of {order.row} by other code or settings ({words}); "
            f"remove {Path.cwd()} there and run the same command again"
        )
    place = inputs_file(order.track, order.row, order.stage)
    if not place.exists() or place.read_text() != order.inputs:
        files.write(place, order.inputs)


@contextmanager
def _alone() -> Iterator[None]:
    """One order at a time puts results in their places."""
    scratch.FOLDER.mkdir(parents=True, exist_ok=True)
    with (scratch.FOLDER / "fetching.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _name(order: Order) -> str:
    return f"{order.track}-{order.row}-{order.stage}{f'@{order.part}' if order.part else ''}"


if __name__ == "__main__":
    main(*sys.argv[1:])
