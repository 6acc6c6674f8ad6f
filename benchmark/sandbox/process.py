"""A sandboxed process: forked, confined, asked, and ended.

It is a fork of the evaluator, made before the evaluator reads an image or a label. A fork costs milliseconds, since
it shares all imported modules. It sees the evaluator's memory as it was then, never as it becomes.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import torch

from benchmark.runtime.errors import BenchmarkError, OutOfMemory, in_submission, of_disk_or_gpu, out_of_memory, said
from benchmark.runtime.torch_setup import threads
from benchmark.sandbox.channel import Broken, Channel, Ended, Message
from benchmark.sandbox.confinement import Confinement, confine, installed

LONGEST = 2_000  # characters of a text from untrusted code
Work = Callable[[Channel], None]
_LIBRARY = ctypes.CDLL(None)


class Refused(BenchmarkError, RuntimeError):
    """torch's RuntimeError, raised in the sandbox."""


class Process:
    """A process that runs `work` on its end of a channel, as the evaluator sees it; as a context, it ends with the block.

    Attributes:
        owner: its name in messages, such as submissions/Wong2020Fast.
        seconds: how long an answer may take.
    """

    def __init__(self, work: Work, rules: Confinement, *, owner: str, seconds: float) -> None:
        self.owner, self.seconds = owner, seconds
        self.home = Path(tempfile.mkdtemp(prefix="rvb-"))
        ours, theirs = socket.socketpair()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        parent = os.getpid()
        installed()  # the fork needs the list
        self.pid = os.fork()
        if not self.pid:
            _become(work, theirs, rules, self.home, parent)
        theirs.close()
        self.channel = Channel(ours)
        self._one_thread = threads() == 1 and not rules.gpu and hasattr(os, "sched_setaffinity")
        self._end = weakref.finalize(self, _end, parent, self.pid, ours, self.home)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process, whatever it does, and remove its folder."""
        self._end()

    def ask(
        self, call: str, tensors: Mapping[str, torch.Tensor] | None = None, *, most: int = 2**26, **values: Any
    ) -> Message:
        """Call a method of the object that the process serves, with tensors and JSON values by name.

        The tensors of the answer have at most `most` bytes.

        Raises:
            BenchmarkError: the process ended, was silent for too long, sent a malformed answer, or reported an error.
            OutOfMemory: the process ran out of memory.
            Refused: torch raised its RuntimeError in the process.
        """
        with self._on_one_core():
            self.send({"call": call, **values}, tensors, self.seconds)
            return self.receive(most=most)

    @contextlib.contextmanager
    def _on_one_core(self) -> Iterator[None]:
        """Let this thread and the process, which wait for each other in turn, compute on one core inside the block.

        On two cores, each asleep half of the time, a pass of a small model takes up to a third longer.
        """
        cores = os.sched_getaffinity(0) if self._one_thread and self._end.alive else set[int]()
        with contextlib.ExitStack() as after:
            with contextlib.suppress(OSError):  # it has ended, or this machine refuses
                if cores and (core := {_LIBRARY.sched_getcpu()}) <= cores:
                    os.sched_setaffinity(self.pid, core)
                    os.sched_setaffinity(0, core)
                    after.callback(os.sched_setaffinity, 0, cores)
            yield

    def send(self, message: Mapping[str, Any], tensors: Mapping[str, torch.Tensor] | None, seconds: float) -> None:
        """Send a message. If the process has ended, the next `receive` raises."""
        with contextlib.suppress(Broken):  # it may have ended after a last message, which is still to be read
            self.channel.send(message, tensors, seconds)

    def receive(self, *, most: int = 2**26, seconds: float | None = None) -> Message:
        """Return the next message that the process sends. Raise as `ask` does."""
        try:
            answer, tensors = self.channel.receive(most, seconds or self.seconds)
        except Broken as problem:
            words = (_ended_by(self.pid) if isinstance(problem, Ended) else "") or str(problem)
            self.close()
            raise BenchmarkError(f"{self.owner}: the process that runs its code failed: {words}") from None
        if "error" in answer:
            kind = OutOfMemory if answer.get("memory") is True else BenchmarkError
            raise (Refused if answer.get("refused") is True else kind)(plain(answer["error"]))
        return answer, tensors


def plain(words: object) -> str:
    """Return text of untrusted code as one line of printable characters."""
    shown = "".join(c if c.isprintable() else " " for c in str(words))
    return " ".join(shown.split())[:LONGEST]


def serve(channel: Channel, served: object) -> None:
    """Answer each message by the method of `served` that it calls, until the other side ends. For the sandboxed process."""
    while True:
        try:
            message, tensors = channel.receive(2**40)
        except Broken:
            return
        try:
            answer = getattr(served, message.pop("call"))(**tensors, **message)
        except (Exception, SystemExit) as error:  # whatever untrusted code raises
            answer = _failure(error), {}
        del message, tensors
        if answer[0].get("memory") is True and torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # other processes need the memory
        channel.send(*answer)


def _failure(error: BaseException) -> dict[str, Any]:
    """Return the answer that reports an exception, with its line in a submission."""
    place = None if isinstance(error, BenchmarkError) else in_submission(error)
    words = of_disk_or_gpu(error) or (f"{place}: {said(error)}" if place else said(error))
    memory = out_of_memory(error)
    refused = (
        type(error) is RuntimeError and not memory and not of_disk_or_gpu(error)
    )  # torch's own: there may be no gradient
    return {"error": words[:LONGEST], "refused": refused, "memory": memory}


def _become(work: Work, connection: socket.socket, rules: Confinement, home: Path, parent: int) -> None:
    """Confine this fork, run `work`, and exit.

    The process writes to a folder in `home` whose name no other process knows. Others may not list `home`, and
    Landlock does not hide whether a file of a known name exists.
    """
    channel = Channel(connection)
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends when its parent does
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        gc.freeze()  # or garbage of the evaluator closes its files here, whose numbers are other files' by then
        _close_all_but(connection.fileno())
        torch.set_num_threads(threads())
        own = home / secrets.token_hex(16)
        own.mkdir()
        confine(rules, own)
        if os.getppid() == parent:  # else the parent ended before `die_with_parent`
            work(channel)
    except (Exception, SystemExit) as error:
        with contextlib.suppress(Broken):
            channel.send(_failure(error))
    finally:
        os._exit(0)


def _close_all_but(kept: int) -> None:
    """Close all files of the evaluator; discard what the code prints."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    os.closerange(3, kept)
    os.closerange(kept + 1, 1 << 16)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115 - for as long as it lives


def _ended_by(pid: int) -> str:
    """Return how a process ended; "" if it exited with status 0. Wait up to 3 s, since freeing a GPU's memory takes time."""
    for _ in range(300):
        try:
            status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # `close` has waited for it
            return ""
        if status is not None and status.si_code in (os.CLD_KILLED, os.CLD_DUMPED):
            memory = ", perhaps out of memory" if status.si_status == signal.SIGKILL else ""
            return f"it was ended by {signal.Signals(status.si_status).name}{memory}"
        if status is not None:
            return f"it ended with exit status {status.si_status}" if status.si_status else ""
        time.sleep(0.01)
    return ""


def _end(parent: int, pid: int, connection: socket.socket, home: Path) -> None:
    if os.getpid() != parent:  # this is another fork: the process is not its child
        return
    connection.close()
    for end in (os.killpg, os.kill):  # its forks, if nothing refuses them, are in its process group
        with contextlib.suppress(ProcessLookupError, PermissionError):
            end(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
    shutil.rmtree(home, ignore_errors=True)
