"""Hands a command over to a warm process that has imported what it needs (benchmark/pipeline/warm.py).

Importing torch costs seconds of a core; a fork of a process that has it costs hundredths.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

VARIABLE = "RVB_WARM"  # names the socket


def run_there(arguments: list[str]) -> None:
    """Ends this process with the status of the warm one's fork, which writes to this process's stdout and stderr.

    Returns where there is no warm process of this folder: the caller then does the work itself.
    """
    place = os.environ.get(VARIABLE)
    if not place:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(place)
        except OSError:
            return
        request = json.dumps({"arguments": arguments, "folder": str(Path.cwd())}).encode()
        socket.send_fds(connection, [request], [0, 1, 2])
        answer = connection.recv(16)
    if answer == b"elsewhere":
        return
    if not answer:
        sys.exit("error: the warm process ended; run the same command again, finished work is kept")
    sys.exit(int(answer))
