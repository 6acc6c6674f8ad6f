"""`rvb repro --engine slurm`: submitit sends a job a row, which runs DVC in this checkout on a shared file system."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmark.pipeline import dvc, machines
from benchmark.pipeline.machines import Plan, Report
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import WORK
from benchmark.runtime.yaml_file import read_yaml

SETTINGS = Path("slurm.yaml")  # submitit's own parameters, such as timeout_min, mem_gb and slurm_partition
DEFAULTS = {"timeout_min": 720, "cpus_per_task": 1}
JOBS = WORK / "slurm" / "jobs.json"  # the last job of each row


def repro(track: str, report: Report, names: Sequence[str] = (), everything: bool = False) -> None:
    """Bring rows of the track and its board up to date by SLURM jobs, and wait for them.

    A coordinator that was killed leaves its jobs running; the next one waits for them first.

    Raises:
        BenchmarkError: no submitit or SLURM, another coordinator, or rows that failed.
    """
    with machines.alone():
        try:
            import submitit
        except ImportError:
            raise BenchmarkError("submitit is not installed; run: pip install 'robust-vit-bench[slurm]'") from None
        if not _local() and not shutil.which("sbatch"):
            raise BenchmarkError("no sbatch on this machine; run --engine slurm where SLURM is installed")
        kind = submitit.LocalJob if _local() else submitit.SlurmJob
        for file, number in (files.read_json(JOBS) if JOBS.exists() else {}).items():
            job: Any = kind(JOBS.parent, number)
            if not _ended(job):
                report(f"{file}: waiting for job {number} of an earlier run")
            while not _ended(job):
                time.sleep(1)
        plan = machines.plan(track, names, everything, False, report)
        machines.close(plan, _run(submitit, plan, report), report)


def _local() -> bool:
    """Whether jobs run on this machine, without SLURM."""
    return os.environ.get("RVB_SUBMITIT") == "local"


def _ended(job: Any) -> bool:
    # submitit does not know the processes that another coordinator started
    alive = _local() and psutil.pid_exists(int(job.job_id)) and not job.paths.result_pickle.exists()
    return job.done() and not alive


def _run(submitit: Any, plan: Plan, report: Report) -> dict[str, str]:
    """Run a job for each dvc.yaml that has stale stages; return why by row that failed."""
    keys: dict[str, list[str]] = {}
    for key in plan.stale:
        keys.setdefault(key.rpartition(":")[0], []).append(key)
    reads = {file: {read.rpartition(":")[0] for key in own for read in plan.reads[key]} for file, own in keys.items()}
    numbers: dict[str, str] = {}

    def submit(file: str) -> Any:
        job = _submit(submitit, keys[file], f"{plan.track}-{Path(file).parent.name}")
        numbers[file] = job.job_id
        files.write_json(JOBS, numbers)
        return job

    def ended(jobs: Sequence[Any]) -> list[tuple[Any, str]]:
        time.sleep(1)
        return [(job, _error(job)) for job in jobs if job.done()]

    return machines.run({file: reads[file] & keys.keys() - {file} for file in keys}, submit, ended, report)


def _submit(submitit: Any, keys: Sequence[str], name: str) -> Any:
    gpus = max(processes if device != "cpu" else 0 for processes, device in map(machines.needs, keys))
    settings = DEFAULTS | ({"gpus_per_node": gpus} if gpus else {}) | (read_yaml(SETTINGS) if SETTINGS.exists() else {})
    executor = submitit.AutoExecutor(folder=JOBS.parent, cluster="local" if _local() else "slurm")
    try:
        executor.update_parameters(**settings, name=name)
    except (NameError, TypeError, ValueError) as error:
        raise BenchmarkError(f"{SETTINGS}: {str(error).strip().splitlines()[0]}") from None
    return executor.submit(run_row, keys, name)


def run_row(keys: Sequence[str], log: str) -> str:
    """Run stages of a row in this checkout; return why they failed, "" if they did not."""
    try:
        dvc.run(["--wait-for-lock", "repro", "-s", *keys], log, print)
    except BenchmarkError as error:
        return str(error)
    return ""


def _error(job: Any) -> str:
    """Return why a job failed, "" if it did not."""
    if error := job.exception():
        return f"{dvc.last_line(str(error))} [log: {job.paths.stderr}]"
    return str(job.result())
