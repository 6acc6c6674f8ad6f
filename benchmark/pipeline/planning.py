"""`rvb plan`: what a run would take, measured row by row before anything starts. Nothing is written to work/."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from benchmark.loading.rows import Row
from benchmark.pipeline import disk, generate
from benchmark.pipeline.calibration import Calibration, calibrate, image_counts
from benchmark.pipeline.graph import foreign_sources, key_of, tasks_of
from benchmark.pipeline.progress import Progress
from benchmark.pipeline.repro import chosen_rows
from benchmark.pipeline.schedule import Task
from benchmark.pipeline.state import State
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.base import Frozen
from benchmark.stages.catalogue import Planned, plan

Say = Callable[[str], None]
MEASURED, AT_MOST, TYPICAL, DONE = "measured", "at most", "typical", "done"


class PlannedStage(Frozen):
    """What a stage of a row would take.

    `how`: `measured`: what it would take, from its own pace; `at most`: it may end sooner; `typical`: what its kind takes;
    `done`: nothing. Seconds are those of one core or GPU; `most` where every attack goes on for as long as it can. Memory,
    that of a GPU, what is kept on disk and what is needed there meanwhile are in bytes.
    """

    row: str
    stage: str
    how: str
    seconds: float = 0.0
    most: float = 0.0
    memory: int = 0
    gpu: int = 0
    disk: int = 0
    scratch: int = 0
    note: str = ""


class Plan(Frozen):
    """All stages of a run; the seconds that pass with `jobs` at a time; what is not counted, and which rows cannot be."""

    stages: tuple[PlannedStage, ...]
    jobs: int
    passes: float
    passes_at_most: float
    data_on_disk: int
    uncounted: tuple[str, ...]
    failed: dict[str, str]

    @property
    def memory(self) -> int:
        """Of the stages that need most, as many as run at a time."""
        return sum(sorted(stage.memory for stage in self.stages)[-self.jobs :])

    @property
    def gpu(self) -> int:
        """Of the stage that needs most."""
        return max((stage.gpu for stage in self.stages), default=0)

    @property
    def scratch(self) -> int:
        return sum(sorted(stage.scratch for stage in self.stages)[-self.jobs :])

    @property
    def disk(self) -> int:
        return self.data_on_disk + sum(stage.disk for stage in self.stages)


@dataclass
class _Found:
    """What is known so far."""

    stages: list[PlannedStage] = field(default_factory=list)
    uncounted: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def plan_run(
    track: str, jobs: int, names: Sequence[str] = (), everything: bool = False, say: Say = lambda _: None
) -> Plan:
    """Measures what `repro` with the same arguments would run.

    Args:
        say: told which row is being measured.

    Raises:
        BenchmarkError: unknown track or row, a submission that does not load, or a training whose images are not here.
    """
    chosen, boards = chosen_rows(track, names, everything)
    state = State(track)
    tasks = tasks_of(track, chosen, {stage for stage in state.stages if state.why(stage)})
    rows = {row.name: row for row in [*(task.what.row for task in tasks.values()), *chosen]}
    counts: dict[str, int] = {}
    if any(task.what.stage.name == "train" for task in tasks.values()):
        say("counting images")
        counts = image_counts(chosen[0])
    found = _Found()
    for number, row in enumerate(rows.values(), 1):
        say(f"measuring {row.name}, {number} of {len(rows)}")
        _add(found, row, [one for one in plan(row) if key_of(one) in tasks], counts)
    data = f"{generate.data_file(track)}:data"
    for stage in [*foreign_sources(track, chosen), data]:
        if state.why(stage):
            found.uncounted.append(f"{stage} ({state.why(stage)})")
    found.uncounted += [f"{board}:leaderboard" for board in boards if tasks or state.why(f"{board}:leaderboard")]
    unprepared = disk.data(counts, chosen[0]) if chosen and state.why(data) else 0
    usual, most = (_passing(tasks, found.stages, jobs, lambda one, n=n: one[n]) for n in (0, 1))  # type: ignore[misc]
    return Plan(
        stages=tuple(found.stages), jobs=jobs, passes=usual, passes_at_most=most, data_on_disk=unprepared,
        uncounted=tuple(dict.fromkeys(found.uncounted)), failed=found.failed,
    )  # fmt: skip


def _passing(
    tasks: Mapping[str, Task[Planned]],
    stages: Sequence[PlannedStage],
    jobs: int,
    which: Callable[[tuple[float, float]], float],
) -> float:
    """Seconds from the start of a run to its end."""
    taken = {(one.row, one.stage): (one.seconds, one.most) for one in stages}
    timed = {
        key: replace(task, seconds=which(taken.get((task.what.row.name, task.what.name), (0.0, 0.0))))
        for key, task in tasks.items()
    }
    return Progress(timed, jobs).seconds_left()


def _add(found: _Found, row: Row, stale: Sequence[Planned], counts: Mapping[str, int]) -> None:
    """The stages of a row, those that are done among them."""
    measured = Calibration()
    if stale:
        try:
            measured = calibrate(row, stale, counts)
        except BenchmarkError as error:
            found.failed[row.name] = str(error)
    weights = measured.weights or (row.weights.stat().st_size if row.weights.exists() else 0)
    todo = {one.name for one in stale}
    for one in plan(row):
        if one.name not in todo:
            found.stages.append(PlannedStage(row=row.name, stage=one.name, how=DONE))
        elif row.name not in found.failed:
            found.stages.append(_stage(one, measured, weights))
            if one.name in measured.seconds and (missing := measured.seconds[one.name].missing):
                found.uncounted.append(f"{row.name}, {one.name}: {missing}")


def _stage(one: Planned, measured: Calibration, weights: int) -> PlannedStage:
    taken = measured.seconds.get(one.name)
    how, usual, most, note = TYPICAL, one.stage.typical_seconds, one.stage.typical_seconds, ""
    if taken:
        sooner = one.stage.name in ("attack", "smooth") or "at most" in taken.note
        how, usual, most, note = AT_MOST if sooner else MEASURED, taken.usual, taken.most, taken.note
    return PlannedStage(
        row=one.row.name,
        stage=one.name,
        how=how,
        seconds=usual,
        most=most,
        memory=measured.memory.get(one.name, 0),
        gpu=measured.gpu.get(one.name, 0),
        disk=disk.kept(one, weights),
        scratch=disk.scratch(one, weights),
        note=note,
    )
