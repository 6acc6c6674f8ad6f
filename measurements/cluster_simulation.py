"""What the coordinator of many machines costs: a thousand rows of eight stages that sleep, on a hundred slots.

    python measurements/cluster_simulation.py 100 300 1000

Copies the project aside with synthetic rows, as pipeline_scale.py does; their results are placeholders, which stand in a DVC
remote alone, and what DVC would note of a stage is what a worker answers. The coordinator's own code plans and dispatches
everything, with real orders and real lock files. Simulated is the engine: its slots sleep, and where the coordinator would
only wait for them, the clock is set forward; the coordinator's own processor time passes on that clock. Then
closing brings all results here, as if none had come during the run, and `dvc repro` must find every stage done.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "measurements"))

import pipeline_scale
import yaml
from dvc.utils.serialize import dumps_yaml

from benchmark.pipeline import generate, graph, inputs, repro
from benchmark.pipeline.cluster import closing, pieces, remote
from benchmark.pipeline.cluster.coordinator import _needs as needs_of
from benchmark.pipeline.cluster.dispatch import Dispatch
from benchmark.pipeline.cluster.engine import Arrived
from benchmark.pipeline.cluster.orders import Answer, Order
from benchmark.pipeline.cluster.resources import Resources
from benchmark.pipeline.cluster.site import Shipment
from benchmark.pipeline.state import State, outputs
from benchmark.runtime import files

SLOTS = 100
SLEEP = 10.0  # seconds of an average stage, a digits row's
MESSAGE = 0.01  # seconds that an order and its answer travel


class Clock:
    """This process's processor time, as other work beside it does not count; set forward while there is nothing to do."""

    def __init__(self) -> None:
        self._skipped = -time.process_time()

    def __call__(self) -> float:
        return time.process_time() + self._skipped

    def skip_to(self, moment: float) -> None:
        self._skipped += max(0.0, moment - self())


class Sleeping:
    """An engine (engine.py) of slots that sleep as long as a stage takes; those that wait start in the order they came."""

    name = "simulation"

    def __init__(self, seconds: Mapping[str, float], answers: Mapping[str, dict[str, Any]], clock: Clock) -> None:
        self.seconds, self.answers, self.clock = seconds, answers, clock
        self.free = [0.0] * SLOTS  # when each slot has nothing more to do
        self.ends: list[tuple[float, str]] = []
        self.begun: list[tuple[float, str]] = []

    def fits(self, needs: Resources) -> bool:
        return True

    def places(self, needs: Resources) -> int:
        return SLOTS

    def start(self, shipment: Shipment) -> None: ...

    def introduced(self, sent: str) -> list[dict[str, Any]]:
        return []

    def submit(self, order: Order, needs: Resources) -> None:
        begins = max(heapq.heappop(self.free), self.clock() + MESSAGE)
        ends = begins + self.seconds[order.key]
        heapq.heappush(self.free, ends)
        heapq.heappush(self.begun, (begins, order.key))
        heapq.heappush(self.ends, (ends + MESSAGE, order.key))

    def wait(self, seconds: float) -> list[Arrived]:
        if self.ends and self.ends[0][0] > self.clock():
            self.clock.skip_to(min(self.ends[0][0], self.clock() + seconds))
        found = []
        while self.ends and self.ends[0][0] <= self.clock():
            _, key = heapq.heappop(self.ends)
            times = json.dumps({"wall_seconds": self.seconds[key], "device": "simulated"})
            answer = Answer(key, self.answers[key], times, "", False, "simulated", self.seconds[key], "slept\n")
            found.append(Arrived(key, Answer.from_json(answer.to_json())))
        return found

    def started(self) -> Mapping[str, str]:
        found = {}
        while self.begun and self.begun[0][0] <= self.clock():
            found[heapq.heappop(self.begun)[1]] = "slot"
        return found

    def stop(self, end: bool) -> None: ...


@dataclass
class Measured:
    """Processor seconds and GiB of one run."""

    rows: int = 0
    stages: int = 0
    planning: float = 0.0
    ideal: float = 0.0
    took: float = 0.0
    computing: float = 0.0  # while it dispatched
    memory: float = 0.0


def main() -> None:
    if sys.argv[1] == "--one":
        print(json.dumps(asdict(one(Path(sys.argv[2])))))
        return
    if sys.argv[1] == "--close":
        chosen, boards = repro.chosen_rows("digits", (), False)
        with mock.patch.object(closing, "refresh_times"):  # of a board of real Records
            closing.close("digits", chosen, boards, {}, False, lambda line: None)
        return
    sizes = [int(size) for size in sys.argv[1:]] or [100, 300, 1000]
    print(f"{platform.machine()}, {os.cpu_count()} cores, one run a size, {SLOTS} slots; seconds of the processor")
    print("| rows | stages | planning | ideal | took | over the ideal | dispatch | memory, GiB | closing |")
    print("|---|---|---|---|---|---|---|---|---|")
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            measure(Path(folder) / "project", size)


def measure(root: Path, size: int) -> None:
    root.mkdir()
    made(root, size)
    found = Measured(**json.loads(in_process(root, "--one", str(root))))
    same_locks(root)
    print(
        f"| {found.rows} | {found.stages} | {found.planning:.1f} | {found.ideal:.1f} | {found.took:.1f} "
        f"| {found.took / found.ideal - 1:.1%} | {found.computing:.1f} | {found.memory:.2f} | {closed(root):.0f} |",
        flush=True,
    )


def made(root: Path, size: int) -> None:
    """A project of so many rows, and beside it `noted`, their locks as DVC would write them, and `store`, a remote with what
    they made.
    """
    pipeline_scale.make(root, size)
    pipeline_scale.run(root, "dvc", "remote", "add", "--local", "--default", "store", str(root.parent / "store"))
    for file in sorted([*root.glob("pipelines/digits/**/dvc.yaml"), root / "dvc.yaml"]):
        stages = yaml.load(file.read_bytes(), yaml.CSafeLoader)["stages"]
        put, store = file.with_name("dvc.lock"), root / ".dvc" / "cache"  # the data and the board are made already
        if file.parent.name.endswith("Net-small"):
            put, store = root.parent / "noted" / file.parent.name / "dvc.lock", root.parent / "store"
        lock = {name: entry(root, stage, store) for name, stage in stages.items() if name != "inputs"}
        files.write(put, dumps_yaml({"schema": "2.0", "stages": lock}))
    for folder in root.glob("work/digits/Synthetic*"):
        shutil.rmtree(folder)


def entry(root: Path, stage: dict[str, Any], store: Path) -> dict[str, Any]:
    """What DVC notes of a stage as it stands; its results go to `store`, a remote or a cache."""
    outs = sorted(outputs(stage))
    return {
        "cmd": stage["cmd"],
        "deps": [digested(root, path) for path in sorted(stage["deps"])],
        "outs": [digested(root, path, store) for path in outs],
    }


def digested(root: Path, path: str, store: Path | None = None) -> dict[str, Any]:
    """A file or folder as DVC notes it; its content goes to `store`, if one is given."""
    own = root / path
    if own.is_file():
        return {"path": path, "hash": "md5", "md5": kept(own.read_bytes(), store), "size": own.stat().st_size}
    found = sorted(one for one in own.rglob("*") if one.is_file())
    listing = [{"md5": kept(one.read_bytes(), store), "relpath": one.relative_to(own).as_posix()} for one in found]
    md5 = kept(json.dumps(listing, sort_keys=True).encode(), store, ".dir")
    size = sum(one.stat().st_size for one in found)
    return {"path": path, "hash": "md5", "md5": md5, "size": size, "nfiles": len(found)}


def kept(content: bytes, store: Path | None, ending: str = "") -> str:
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest() + ending
    if store and not (place := store / "files" / "md5" / md5[:2] / md5[2:]).exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    return md5


def noted(root: Path) -> dict[str, Path]:
    """The rows' locks as DVC would write them, by dvc.yaml."""
    found = sorted((root.parent / "noted").glob("*/dvc.lock"))
    return {f"pipelines/digits/{path.parent.name}/dvc.yaml": path for path in found}


def same_locks(root: Path) -> None:
    for file, lock in noted(root).items():
        if (root / file).with_name("dvc.lock").read_bytes() != lock.read_bytes():
            sys.exit(f"{file}: its lock is not what DVC would write")


def one(root: Path) -> Measured:
    """Plans and dispatches everything, in a process of its own."""
    os.chdir(root)
    found, began = Measured(), time.process_time()
    chosen, _ = repro.chosen_rows("digits", (), False)
    if generate.stale():
        sys.exit("the pipeline does not fit the submissions")
    inputs.write("digits")
    needs = needs_of("digits", chosen)
    state = State("digits", lambda digests: remote.find(digests, print))
    tasks = graph.tasks_of("digits", chosen, {stage for stage in state.stages if state.why(stage)})
    reads = graph.reads("digits", chosen)
    found.planning = time.process_time() - began
    mean = sum(task.seconds for task in tasks.values()) / len(tasks)
    seconds = {key: task.seconds * SLEEP / mean for key, task in tasks.items()}
    answers = {}
    for file, lock in noted(root).items():
        entries = yaml.load(lock.read_text(), yaml.CSafeLoader)["stages"]
        answers |= {f"{file}:{name}": one for name, one in entries.items()}
    clock = Clock()
    processor = time.process_time()
    cut, takes = pieces.cut(tasks, needs)
    dispatch = Dispatch(Sleeping(seconds, answers, clock), cut, takes, reads, lambda line: None, clock=clock)
    failed = dispatch.run()
    if failed or len(dispatch.done) != len(tasks):
        sys.exit(f"not all was done: {failed}")
    found.took, found.computing = clock(), time.process_time() - processor
    found.rows, found.stages = len(chosen), len(tasks)
    found.ideal = max(sum(seconds.values()) / SLOTS, max(dispatch.urgency.values()) * SLEEP / mean)
    found.memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return found


def in_process(root: Path, *arguments: str) -> str:
    command = [sys.executable, __file__, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=root, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def closed(root: Path) -> float:
    """Processor seconds of what a run does at its end, in a process of its own: all results here, then `dvc repro`; it must
    run nothing.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    in_process(root, "--close")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = (root / "work/logs/digits-board.log").read_text()
    if ran := [line for line in said.splitlines() if line.startswith("Running stage") and ":inputs'" not in line]:
        sys.exit(ran[0])
    if missing := [path for path in (root / "work" / "digits").glob("Synthetic*/*") if not any(path.iterdir())]:
        sys.exit(f"{missing[0]} is empty")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
