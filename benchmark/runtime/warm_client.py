"""Hands a command over to a warm process that has imported what it needs (benchmark/pipeline/warm.py).

Importing torch costs seconds of a core; a fork of a process that has it costs hundredths.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

VARIABLE = "RVB_WARM"  # names the socket
GPUS = "CUDA_VISIBLE_DEVICES"  # a fork takes it over from the process that asks
Program = Literal["stage", "dvc"]


def ask(
    place: str, program: Program, arguments: list[str], streams: Sequence[int], gpus: str | None = None
) -> socket.socket | None:
    """Has a fork of the warm process at `place` run a program with these standard streams; its end is told by `status`.

    It sees these `gpus` alone, else those that this process sees. Returns None where no warm process listens there.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    gpus = os.environ.get(GPUS) if gpus is None else gpus
    request = {"program": program, "arguments": arguments, "folder": str(Path.cwd()), "gpus": gpus}
    try:
        connection.connect(place)
        socket.send_fds(connection, [json.dumps(request).encode()], list(streams))
    except OSError:
        connection.close()
        return None
    return connection


def status(connection: socket.socket) -> int | None:
    """Waits for the fork: its exit status; None where the warm process did nothing, being of another folder or older code.

    Raises:
        EOFError: the warm process ended.
    """
    with connection:
        try:
            answer = connection.recv(16)
        except ConnectionError:
            answer = b""
    if not answer:
        raise EOFError("the warm process ended; run the same command again, finished work is kept")
    return None if answer == b"elsewhere" else int(answer)


def run_there(arguments: list[str]) -> None:
    """Ends this process with the status of a stage that the warm process runs, with this process's output.

    Returns where there is no warm process of this folder: the caller then does the work itself.
    """
    place = os.environ.get(VARIABLE)
    connection = ask(place, "stage", arguments, (0, 1, 2)) if place else None
    if connection is None:
        return
    try:
        ended = status(connection)
    except EOFError as error:
        sys.exit(f"error: {error}")
    if ended is not None:
        sys.exit(ended)
