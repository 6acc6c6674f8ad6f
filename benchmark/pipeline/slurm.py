"""`rvb repro --engine slurm`: submitit sends one job a row, which runs DVC in this checkout on a shared file system."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Lock
from typing import Any

import psutil

from benchmark.pipeline import dvc, repro
from benchmark.pipeline.dvc import Report
from benchmark.pipeline.gpus import needs
from benchmark.pipeline.repro import Runner, Targets
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import WORK
from benchmark.runtime.yaml_file import read_yaml
from benchmark.specs.rows import Row

SETTINGS = Path("slurm.yaml")  # submitit's own parameters, such as timeout_min, mem_gb and slurm_partition
DEFAULTS = {"timeout_min": 720, "cpus_per_task": 1}
JOBS = WORK / "slurm" / "jobs.json"  # the last job of each row


def run(track: str, report: Report, names: Sequence[str] = (), everything: bool = False) -> None:
    """Bring rows of the track and its board up to date by SLURM jobs, and wait for them.

    A coordinator that was killed leaves its jobs running; the next one waits for them first. Raise a BenchmarkError for a
    missing submitit or SLURM, another coordinator, or rows that failed.
    """
    with repro.alone():
        try:
            import submitit
        except ImportError:
            raise BenchmarkError("submitit is not installed; run: pip install 'robust-vit-bench[slurm]'") from None
        if not _local() and not shutil.which("sbatch"):
            raise BenchmarkError("no sbatch on this machine; run --engine slurm where SLURM is installed")
        kind = submitit.LocalJob if _local() else submitit.SlurmJob
        for name, number in (files.read_model(JOBS, dict[str, str]) if JOBS.exists() else {}).items():
            job: Any = kind(JOBS.parent, number)
            if not _ended(job):
                report(f"{name}: waiting for job {number} of an earlier run")
            while not _ended(job):
                time.sleep(1)
        repro.repro(track, repro.MANY, report, names, everything, _jobs)


def _local() -> bool:
    """Whether jobs run on this machine, without SLURM."""
    return os.environ.get("RVB_SUBMITIT") == "local"


def _ended(job: Any) -> bool:
    # submitit does not know the processes that another coordinator started
    alive = _local() and psutil.pid_exists(int(job.job_id)) and not job.paths.result_pickle.exists()
    return job.done() and not alive


@contextmanager
def _jobs(rows: Sequence[Row], targets: Targets) -> Iterator[Runner]:
    """Yield a function that runs a row as a job."""
    _executor()  # refuses settings before any job is sent
    numbers: dict[str, str] = {}
    one_at_a_time = Lock()  # submitit is not thread-safe

    def run(row: Row, keys: Sequence[str], interrupted: Event) -> None:
        log = f"{row.track.name}-{row.name}"
        gpus = max(processes if device != "cpu" else 0 for processes, device in map(needs, keys))
        with one_at_a_time:
            job = _executor(name=log, **({"gpus_per_node": gpus} if gpus else {})).submit(run_row, keys, log)
            numbers[row.name] = job.job_id
            files.write_json(JOBS, numbers)
        while True:
            with one_at_a_time:
                if job.done():
                    break
            if interrupted.wait(1):
                raise BenchmarkError("interrupted")
        if error := job.exception():
            raise BenchmarkError(f"{dvc.last_line(str(error))} [log: {job.paths.stderr}]")
        if why := job.result():
            raise BenchmarkError(why)

    yield run


def _executor(**more: Any) -> Any:
    import submitit

    settings = DEFAULTS | more | (read_yaml(SETTINGS) if SETTINGS.exists() else {})
    executor = submitit.AutoExecutor(folder=JOBS.parent, cluster="local" if _local() else "slurm")
    try:
        executor.update_parameters(**settings)
    except (NameError, TypeError, ValueError) as error:
        raise BenchmarkError(f"{SETTINGS}: {str(error).strip().splitlines()[0]}") from None
    return executor


def run_row(keys: Sequence[str], log: str) -> str:
    """Run stages of a row in this checkout. Return why they failed, "" if they did not."""
    try:
        dvc.run(["--wait-for-lock", "repro", "-s", *keys], log, print)
    except BenchmarkError as error:
        return str(error)
    return ""
