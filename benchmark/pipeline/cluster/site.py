"""The checkout of a machine that carries out orders, and the warm process in it. Standard library alone: an engine sends this
file itself to its workers, which then need no checkout, but the same Python packages.

The checkout stays when the run ends: what a killed stage left is gone on with, and what a full remote did not take is sent
by the next run.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KEPT = "dvc.lock"  # what the checkout knows of its own runs


@dataclass(frozen=True)
class Shipment:
    """What a machine needs: the files of a commit as a tar archive, DVC's configuration, and variables of the processes."""

    commit: str
    archive: bytes
    config: str
    variables: dict[str, str] = field(default_factory=dict)
    home: str = ""  # where checkouts stand; by default the user's cache

    def folder(self) -> Path:
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        home = self.home or os.environ.get("RVB_CHECKOUTS") or os.path.join(cache, "robust-vit-bench")
        return Path(home).expanduser().absolute() / self.commit[:16]


def unpack(shipment: Shipment) -> Path:
    """The files of the commit, written where they are missing or differ; others are left alone, but for stray code."""
    folder = shipment.folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".unpacking").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with tarfile.open(fileobj=io.BytesIO(shipment.archive)) as archive:
            members = [one for one in archive.getmembers() if one.isfile()]
            for one in members:
                source = archive.extractfile(one)
                if source is not None and not one.name.endswith(KEPT):
                    _write(folder / one.name, source.read(), one.mode)
        _remove_strays(folder, {one.name for one in members})
        _write(folder / ".dvc" / "config.local", shipment.config.encode(), 0o600)
    return folder


def _remove_strays(folder: Path, known: set[str]) -> None:
    """Code and settings that the commit does not hold would be imported, or count as a submission's."""
    for name in ("benchmark", "submissions", "leaderboard", "autoattack"):
        for path in sorted((folder / name).rglob("*"), reverse=True):
            if path.is_file() and "__pycache__" not in path.parts and path.relative_to(folder).as_posix() not in known:
                path.unlink()


def _write(path: Path, data: bytes, mode: int) -> None:
    if path.is_file() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.touch(0o600)  # it may hold passwords
    aside.write_bytes(data)
    aside.chmod(mode or 0o644)
    os.replace(aside, path)


class Site:
    """One of a machine, shared by all orders there: a process that has imported torch once, and forks for each order."""

    def __init__(self, shipment: Shipment) -> None:
        self.folder = unpack(shipment)
        self.home = tempfile.mkdtemp(prefix="rvb-site-")
        self.variables = shipment.variables
        self.socket = os.path.join(self.home, "socket")
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.bind(self.socket)
        server.listen(64)
        ours, self.held = os.pipe()
        here = str(Path(sys.executable).parent)
        environment = {
            **os.environ,
            **self.variables,
            "PATH": f"{here}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONPATH": str(self.folder),
        }
        command = [sys.executable, "-m", "benchmark.pipeline.warm", str(server.fileno()), str(ours)]
        with open(os.path.join(self.home, "log"), "wb") as log:
            self.process = subprocess.Popen(
                command, pass_fds=[server.fileno(), ours], cwd=self.folder, env=environment, stdout=log, stderr=log
            )
        os.close(ours)
        server.close()

    def place(self) -> tuple[str, str]:
        """The warm process's socket, and the checkout."""
        return self.socket, str(self.folder)

    def ended(self) -> None:
        """Waits for the warm process, and says how it ended."""
        self.process.wait()
        lines = Path(self.home, "log").read_text(errors="replace").strip().splitlines() or ["no output"]
        raise RuntimeError(f"the warm process on {socket.gethostname()} ended: {lines[-1]}")

    def end(self) -> None:
        """Ends what runs here: stages stop as by a kill, and go on when they are asked for again."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        shutil.rmtree(self.home, ignore_errors=True)


def ask(place: tuple[str, str], program: str, text: str, gpus: str | None = None) -> str:
    """Has a fork of the warm process carry out what `text` says; its answer, "" where it was killed."""
    address, folder = place
    scratch = Path(folder) / "work" / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    name = f"{os.getpid()}-{time.time_ns()}"
    question, answer = scratch / f"order-{name}.json", scratch / f"answer-{name}.json"
    question.write_text(text)
    try:
        with (Path(folder) / "work" / "scratch" / f"log-{name}").open("w+") as log:
            status = _served(address, folder, program, [str(question), str(answer)], log.fileno(), gpus)
            if answer.exists():
                return answer.read_text()
            log.seek(0)
            said = log.read().strip().splitlines()
        if status == 1 and said:  # it ended by itself, without an answer: a failure of the code, not of the machine
            raise RuntimeError(said[-1])
        return ""
    finally:
        for path in (question, answer, scratch / f"log-{name}"):
            path.unlink(missing_ok=True)


def _served(address: str, folder: str, program: str, arguments: list[str], log: int, gpus: str | None) -> int | None:
    """The exit status of the fork; None where the warm process itself ended."""
    request = {"program": program, "arguments": arguments, "folder": folder, "gpus": gpus}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, open(os.devnull) as nothing:
        streams = array.array("i", [nothing.fileno(), log, log])
        try:
            connection.connect(address)
        except OSError:
            raise Unmanned from None
        try:
            connection.sendmsg([json.dumps(request).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
            answer = connection.recv(16)
        except OSError:
            return None
    if answer == b"elsewhere":
        raise RuntimeError(f"the checkout {folder} on {socket.gethostname()} was changed while orders ran there")
    return int(answer) if answer else None


class Unmanned(Exception):
    """A machine whose site or warm process is not there; the coordinator starts another."""


def introduced(sent: str) -> str:
    """A task: what this machine says of itself (node.py); a RuntimeError where its warm process does not start."""
    import ray

    place = _place()
    try:
        answer = ask(place, "node", sent)
    except Unmanned:
        answer = ""
    if not answer:
        ray.get(ray.get_actor(_site_name()).ended.remote(), timeout=30)  # raises, and says why
    return answer


def carried_out(events: Any, key: str, text: str) -> str:
    """A task that holds the resources of a stage while the site of its machine carries out the order."""
    import ray

    gpus = ",".join(map(str, ray.get_gpu_ids()))
    until = time.monotonic() + 120
    while True:
        place = _place()
        events.started.remote(key, socket.gethostname())
        try:
            return ask(place, "order", text, gpus or None)
        except Unmanned:
            if time.monotonic() > until:
                raise Unmanned(f"no site answers on {socket.gethostname()}") from None
            time.sleep(1)


def _place() -> tuple[str, str]:
    """That of this machine's site, which the coordinator starts; it takes a moment on a machine that has just come."""
    import ray

    until = time.monotonic() + 120
    while True:
        try:
            # not by ray.get, during which Ray gives this task's cores to another one
            socket_and_folder: Any = ray.get_actor(_site_name()).place.remote().future().result()
            return socket_and_folder[0], socket_and_folder[1]
        except ValueError:
            if time.monotonic() > until:
                raise Unmanned(f"no site was started on {socket.gethostname()}") from None
            time.sleep(0.2)


def _site_name() -> str:
    import ray

    return f"site-{ray.get_runtime_context().get_node_id()}"


def element(name: str, number: str) -> int:
    """An element of a job array (slurm.py): its order, with what earlier elements answered; the status to end with."""
    run = Path(__file__).absolute().parent
    text = json.loads((run / "orders" / f"{name}.json").read_text())[int(number)]
    if text is None:
        print("nothing to do for this row")
        return 0
    order, answer = json.loads(text), run / "answers" / f"{name}-{number}.json"
    known = [json.loads(path.read_text()) for path in (run / "answers").glob("*.json")]
    order["locks"].update(
        {one["key"]: one["entry"] for one in known if one["key"] in order["reads"] and one.get("entry")}
    )
    missing = [key for key in order["reads"] if key not in order["locks"]]
    if missing:
        words = f"after {missing[0]}, which failed or did not run"
        _write(answer, json.dumps({"key": order["key"], "error": words}).encode(), 0o644)
        print(words)
        return 1
    about = json.loads((run / "shipment.json").read_text())
    folder = unpack(Shipment(archive=(run / "files.tar").read_bytes(), **about))
    asked = run / "orders" / f"{name}-{number}.order"
    asked.write_text(json.dumps(order))
    here = str(Path(sys.executable).parent)
    environment = {**os.environ, **about["variables"], "PATH": f"{here}{os.pathsep}{os.environ.get('PATH', '')}"}
    command = [sys.executable, "-m", "benchmark.pipeline.cluster.worker", str(asked), str(answer)]
    status = subprocess.run(command, cwd=folder, env={**environment, "PYTHONPATH": str(folder)}, check=False).returncode
    if status:
        return status
    found = json.loads(answer.read_text())
    print(found["log"])
    return 1 if found["error"] else 0


if __name__ == "__main__":
    sys.exit(element(*sys.argv[1:]))
