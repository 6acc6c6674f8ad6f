"""`rvb site`: renders, and serves on loopback until Ctrl-C."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from benchmark.commands import site
from benchmark.runtime.errors import BenchmarkError


def test_a_taken_port_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(BenchmarkError, match=r"cannot be served .*; name another with --port"):
            site._serve(taken.getsockname()[1])
    with pytest.raises(BenchmarkError, match="port 70000 cannot be served"):
        site._serve(70000)


@pytest.mark.slow
def test_the_site_is_served_until_ctrl_c(built) -> None:
    command = [sys.executable, "-m", "benchmark.commands.main", "site", "--serve", "--port", "0"]
    process = subprocess.Popen(
        command, cwd=built.root, env=built.environment(), stdout=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        assert process.stdout is not None
        address = next(line for line in process.stdout if line.startswith("http://127.0.0.1:")).split()[0]
        for place, words in (("", "Tracks"), ("tiny/index.html", "Tiny2026Net"), ("feed.xml", "<feed")):
            with urllib.request.urlopen(address + place) as answer:
                assert words in answer.read().decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    finally:
        process.kill()
