"""`rvb repro --engine ray`: a Ray task runs a DVC stage in a copy of the checkout; the DVC remote carries the results."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any

from benchmark import protocol
from benchmark.pipeline import dvc, generate, repro
from benchmark.pipeline.dvc import Report
from benchmark.pipeline.gpus import needs
from benchmark.pipeline.repro import Runner, Targets
from benchmark.runtime import files, git, machine
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import WORK
from benchmark.specs.rows import Row

RETRIES = 3  # of a task whose worker or machine was lost
COPIES = ".copies"  # the folder of the tasks' copies, in the checkout that Ray unpacks


def run(track: str, address: str, jobs: int, report: Report, names: Sequence[str] = (), everything: bool = False) -> None:
    """Bring rows of the track and its board up to date on the machines of a Ray cluster.

    Args:
        address: of the cluster; "" for `jobs` cores of this machine.
        names: only these rows, and no board.

    Raises:
        BenchmarkError: no DVC remote, no cluster, a stage that no machine can run, another coordinator, or rows that failed.
    """
    with repro.alone():
        remote = default_remote()

        @contextlib.contextmanager
        def engine(rows: Sequence[Row], targets: Targets) -> Iterator[Runner]:
            reads = {key for row in rows for key in [*_sources(row), *repro.stages(row)[:1]]}
            ready = reads - {key for own in targets.values() for key in own}
            dvc.run(["push", *sorted(ready)], f"{track}-push", report)
            with _checkout(rows, *remote) as folder, _cluster(address, jobs, folder) as ray:
                yield _runner(ray, targets)

        repro.repro(track, repro.MANY, report, names, everything, engine, remote=True)


def _sources(row: Row) -> list[str]:
    """Return the stages whose results a row reads: the data, and the training of the row that it starts from."""
    return [f"{generate.data_file(row.track.name)}:data", *(repro.stages(row.source)[:1] if row.source else [])]


def default_remote() -> tuple[str, str]:
    """Return the name and the URL of the default DVC remote. Raise a BenchmarkError if there is none."""
    with contextlib.suppress(BenchmarkError):
        if name := dvc.ask("config", "core.remote").strip():
            return name, dvc.ask("config", f"remote.{name}.url").strip()
    raise BenchmarkError(
        "no default DVC remote carries the results between machines; run: dvc remote add --default <name> <folder or URL>"
    )


@contextlib.contextmanager
def _checkout(rows: Sequence[Row], remote: str, url: str) -> Iterator[Path]:
    """Yield a folder with the files that git does not ignore, and everything else that the stages read on this machine."""
    listed = git.run("ls-files", "-coz", "--exclude-standard").split("\0")
    steps = [step for row in rows for step in protocol.plan(row)]
    given = {str(path) for step in steps for path in step.reads if path.parts[0] != WORK.name}
    paths = {*listed, ".dvc/config.local", *given, *(str(step.inputs) for step in steps)}
    with tempfile.TemporaryDirectory(prefix="rvb-") as name:
        folder = Path(name)
        for path in sorted(paths - {""}):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            if Path(path).is_dir():
                shutil.copytree(path, folder / path, dirs_exist_ok=True)
            elif Path(path).exists():
                shutil.copy2(path, folder / path)
        dvc.ask("config", "--local", "core.no_scm", "true", cwd=folder)
        dvc.ask("config", "--local", "cache.dir", "../cache", cwd=folder)  # one for all copies
        if url.startswith("/"):
            dvc.ask("remote", "modify", "--local", remote, "url", url, cwd=folder)
        yield folder


@contextlib.contextmanager
def _cluster(address: str, jobs: int, folder: Path) -> Iterator[Any]:
    """Yield Ray, connected, with the folder as the working directory of its tasks."""
    defaults = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_RUNTIME_ENV_IGNORE_GITIGNORE": "1",  # all files of the folder are for the tasks
        "RAY_worker_niceness": "0",  # 15 by default: beside other work stages would starve
    }
    os.environ.update(defaults | os.environ)
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        import ray
    except ImportError:
        raise BenchmarkError("Ray is not installed; run: pip install 'robust-vit-bench[ray]'") from None
    _check_answers(address)
    variables = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}  # results depend on it
    where: dict[str, Any] = {"address": address} if address else {"address": "local", "num_cpus": jobs}
    try:
        ray.init(
            **where, runtime_env={"working_dir": str(folder), "env_vars": variables}, log_to_driver=False,
            include_dashboard=None if address else False, logging_level=logging.ERROR,
        )  # fmt: skip
    except (ConnectionError, ValueError, RuntimeError) as error:
        words = " ".join(str(error).split())[:200]
        if "exceeds the maximum size" in words:
            raise BenchmarkError(f"the checkout is too large for Ray; remove or ignore large files: {words}") from None
        raise BenchmarkError(f"no Ray cluster answers at {address or 'this machine'}: {words}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_answers(address: str) -> None:
    """Raise a BenchmarkError if nothing listens at `<host>:<port>`: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except OSError as error:
            raise BenchmarkError(f"no Ray cluster answers at {address}: {error.strerror or error}") from None


def _runner(ray: Any, targets: Targets) -> Runner:
    """Return what runs a row as one task a stage. Raise a BenchmarkError if no machine can run a stage."""
    task, own = ray.remote(max_retries=RETRIES)(run_stage), versions()
    resources = {key: _resources(ray, key) for keys in targets.values() for key in keys}

    def run(row: Row, keys: Sequence[str], interrupted: Event) -> None:
        reads = _sources(row)
        for key in repro.stages(row):
            if key in keys:
                paths = {_lock(read) for read in (*reads, key)}
                texts = {path.as_posix(): path.read_text() for path in paths if path.exists()}
                job = task.options(name=key, **resources[key]).remote(key, reads, texts, own)
                while not ray.wait([job], timeout=1)[0]:
                    if interrupted.is_set():
                        raise BenchmarkError("interrupted")
                _take(ray, job)
            reads = [*reads, key]

    return run


def _lock(key: str) -> Path:
    return Path(key.rpartition(":")[0]).with_name("dvc.lock")


def _resources(ray: Any, key: str) -> dict[str, int]:
    """Return Ray's resources of a stage. Raise a BenchmarkError if no machine has them."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cores, device = needs(key)
    gpus = 0 if device == "cpu" or (device == "auto" and not any(node.get("GPU") for node in nodes)) else cores
    if not any(node.get("CPU", 0) >= cores and node.get("GPU", 0) >= gpus for node in nodes):
        words = f"{gpus} GPU" if gpus else f"{cores} cores"
        raise BenchmarkError(f"{key} needs {words}, which no machine of the cluster has; change params.yaml")
    return {"num_cpus": cores, "num_gpus": gpus}


def _take(ray: Any, job: Any) -> None:
    """Write what a task returned: logs, times and the row's lock. Raise a BenchmarkError if it failed."""
    try:
        why, texts = ray.get(job)
    except ray.exceptions.RayError as error:
        raise BenchmarkError(f"{dvc.last_line(str(error))} (tried up to {RETRIES + 1} times)") from None
    for path, text in texts.items():
        files.write(Path(path), text)
    if why:
        raise BenchmarkError(why)


def versions() -> dict[str, str]:
    """Return the versions that results depend on."""
    environment = machine.environment()
    return {name: version for name, version in environment.items() if name not in ("arithmetic", "threads")}


def run_stage(
    key: str, reads: Sequence[str], texts: Mapping[str, str], required: Mapping[str, str]
) -> tuple[str, dict[str, str]]:
    """Run a stage on a machine of the cluster, in a copy of the checkout that no other task uses.

    Args:
        reads: the stages whose results it reads.
        texts: of the lock files, by path.
        required: the versions on the coordinator.

    Returns:
        Why it failed, "" if it did not; and the texts of logs, times and, if it did not fail, the row's lock, by path.
    """
    own, shipped = versions(), Path.cwd()
    for name, version in required.items():
        if own.get(name) != version:
            words = f"{platform.node()} has {name} {own.get(name)}, the coordinator {version}"
            return f"{words}; install the same there (constraints.txt)", {}
    Path(COPIES).mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=shipped / COPIES) as name:
        folder = Path(name)
        # only those dvc.yaml files that the stages need: DVC reads all that there are
        left_out = {str(shipped): {COPIES, generate.FOLDER.name, "dvc.yaml", "dvc.lock", "__pycache__"}}
        shutil.copytree(shipped, folder, ignore=lambda home, _: left_out.get(home, set()), dirs_exist_ok=True)
        for path in {stage.rpartition(":")[0] for stage in (key, *reads)}:
            files.write(folder / path, (shipped / path).read_text())
        for path, text in texts.items():
            files.write(folder / path, text)
        with contextlib.chdir(folder):
            return _carried_out(key, reads)


def _carried_out(key: str, reads: Sequence[str]) -> tuple[str, dict[str, str]]:
    lock, why = _lock(key), ""
    log = f"{lock.parts[1]}-{lock.parts[2]}-{key.rpartition(':')[2]}"
    try:
        dvc.run(["pull", "--force", "--allow-missing", *reads, key], f"{log}-pull", print)
        dvc.run(["repro", "-s", key], log, print)
        dvc.run(["push", key], f"{log}-push", print)
    except BenchmarkError as error:
        why = str(error)
    written = [*dvc.LOGS.glob("*.log"), *Path().glob("work/*/*/times/*.json"), *([lock] if not why and lock.exists() else [])]
    return why, {path.as_posix(): path.read_text() for path in written}
