"""A warm process: it has imported what stages and DVC need, and forks once for each of them, and for orders (cluster/).

It serves the processes of one folder through a Unix socket that only this user can open, and ends with the process that
started it. A stage that is still running then goes on by itself, as one does whose DVC was killed: its lock is held, and
the next run waits for it. Asked to end (SIGTERM), it ends its forks too; DVC and an order end with the process that asked for
them, since whoever asks again would find results held by them.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

from benchmark.loading.run_settings import run_settings
from benchmark.pipeline.dvc import environment
from benchmark.runtime import arithmetic, code, errors
from benchmark.runtime.warm_client import GPUS, VARIABLE
from benchmark.stages import catalogue
from benchmark.stages.__main__ import main

# what most stages import, and is slow to; and all that the stages import of the project
PRELOADED = (
    "torch", "torchvision", "timm", "scipy.stats", "pyarrow.parquet", "lightning_fabric", "rich.console",
    "foolbox", "pyautoattack", "safetensors.torch", "dvc.cachemgr", "dvc.cli.parser", "dvc.commands.repro",
    "dvc.data_cloud", "dvc.output", "dvc.repo.artifacts", "dvc.repo.datasets", "dvc.repo.metrics", "dvc.repo.plots",
    "dvc.repo.reproduce", "dvc.repo.stage", "dvc.rwlock", "dvc.scm", "dvc.utils.strictyaml", "dvc_data.hashfile.status",
    "dvc_render",
)  # fmt: skip


@contextlib.contextmanager
def warm_process() -> Iterator[str]:
    """Starts one for the present folder; gives its socket, which VARIABLE names to the processes of stages."""
    with tempfile.TemporaryDirectory(prefix="rvb-") as home:
        place = os.path.join(home, "socket")
        ours, theirs = os.pipe()
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.bind(place)
        server.listen(64)
        process = _start(server, ours)
        os.close(ours)
        server.close()
        try:
            yield place
        finally:
            os.close(theirs)
            process.wait()


def _start(server: socket.socket, parent: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "benchmark.pipeline.warm", str(server.fileno()), str(parent)]
    return subprocess.Popen(command, pass_fds=[server.fileno(), parent], env=environment())


def serve(server: socket.socket, parent: int) -> None:
    """Forks for each request until `parent`, the reading end of a pipe that the starting process holds open, ends."""
    folder = str(Path.cwd())
    arithmetic.fix(run_settings().arithmetic)
    os.environ[VARIABLE] = server.getsockname()  # a fork that is DVC starts processes of stages, which ask here in turn
    before = _own_code()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's, of its own modules
        for name in (*PRELOADED, *(".".join(Path(file).with_suffix("").parts) for file in before)):
            importlib.import_module(name)
    running: dict[int, socket.socket] = {}
    wakes, wake = socket.socketpair()
    for end in (wakes, wake):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends when its parent does
    asked_to_end = []
    signal.signal(signal.SIGTERM, lambda *_: asked_to_end.append(True))
    signal.set_wakeup_fd(wake.fileno())
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as ends:
        ends.callback(signal.set_wakeup_fd, -1)  # a child may end after the socket is closed
        for watched in (server, parent, wakes):
            selector.register(watched, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if wakes in ready:
                with contextlib.suppress(BlockingIOError):
                    wakes.recv(4096)
            _reap(running, selector)
            if asked_to_end:
                for child in running:
                    os.kill(child, signal.SIGTERM)
                return
            alone = parent in ready
            for child, asks in [*running.items()]:
                if asks in ready or (alone and asks in selector.get_map()):
                    selector.unregister(asks)  # nobody waits for it any more
                    os.kill(child, signal.SIGTERM)
                    if alone:
                        os.waitpid(child, 0)  # while it is not, DVC takes it to be running
            if alone:
                return
            if server in ready:
                _accept(server, folder, before, running, selector)


def _own_code() -> dict[str, str]:
    """Digests of the project's files that stages import, whichever row they work on."""
    found = code.digests(*(catalogue.stage_file(name) for name in catalogue.stages()))
    return {file: digest for file, digest in found.items() if not file.endswith("__init__.py")}


def _accept(
    server: socket.socket,
    folder: str,
    imported: dict[str, str],
    running: dict[int, socket.socket],
    selector: selectors.BaseSelector,
) -> None:
    connection, _ = server.accept()
    request, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 3)
    asked = json.loads(request or b"{}")  # empty: who asked was killed
    served = asked.get("folder") == folder and (asked["program"] != "stage" or _own_code() == imported)
    if not served:
        with contextlib.suppress(OSError):
            connection.sendall(b"elsewhere")
        connection.close()
    elif child := os.fork():
        running[child] = connection
        if asked["program"] in ("dvc", "order"):
            selector.register(connection, selectors.EVENT_READ)
    else:
        if asked["gpus"] is not None:
            os.environ[GPUS] = asked["gpus"]
        _become(asked["program"], asked["arguments"], descriptors)
    for descriptor in descriptors:
        os.close(descriptor)


def _become(program: str, arguments: list[str], descriptors: list[int]) -> None:
    """In the fork: a stage or DVC, with the standard streams of the process that asked; does not return."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # interrupted, DVC frees its locks; a stage just ends, as by a kill
    signal.signal(signal.SIGINT, signal.default_int_handler if program == "dvc" else signal.SIG_DFL)
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
    os.closerange(3, 1 << 16)
    status = 1
    try:
        if program == "dvc":
            from dvc.cli import main as dvc

            status = dvc(arguments)
        else:
            errors.run(lambda: main(*arguments))
            status = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        elif not end.code:
            status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _reap(running: dict[int, socket.socket], selector: selectors.BaseSelector) -> None:
    """Tells those who wait for a fork how it ended."""
    for child, connection in [*running.items()]:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            with contextlib.suppress(OSError):  # who asked may have been killed
                connection.sendall(str(code if code >= 0 else 128 - code).encode())
            if connection in selector.get_map():
                selector.unregister(connection)
            running.pop(child).close()


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
