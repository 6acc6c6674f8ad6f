"""`rvb site`: the whole site, with a front page, and a server for this machine alone."""

from __future__ import annotations

import functools
import http.server
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmark.runtime.errors import BenchmarkError

SITE = Path("work/site")


def site(
    serve: Annotated[bool, typer.Option("--serve", help="Then serve it on this machine, until Ctrl-C.")] = False,
    port: Annotated[int, typer.Option(help="Of --serve; 0 for any that is free.")] = 8000,
    address: Annotated[str, typer.Option(help="Where it will be published; the site map needs it.")] = "",
) -> None:
    """Render the front page and every track's board, model, paper and compare pages, in work/site."""
    done = subprocess.run([sys.executable, "-m", "leaderboard.front", "--address", address])
    if done.returncode:
        raise typer.Exit(done.returncode)
    if serve:
        _serve(port)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a page asks for a dozen files."""


def _serve(port: int) -> None:
    handler = functools.partial(_Quiet, directory=str(SITE))
    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
    except (OSError, OverflowError) as error:
        raise BenchmarkError(f"port {port} cannot be served ({error}); name another with --port") from None
    with server:
        typer.echo(f"http://127.0.0.1:{server.server_port}/ (Ctrl-C ends it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("ended", err=True)
