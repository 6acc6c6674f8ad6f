"""`rvb site`: the whole site, with a front page."""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated

import typer


def site(
    address: Annotated[str, typer.Option(help="Where it will be published; the site map needs it.")] = "",
) -> None:
    """Render the front page and every track's board, model, paper and compare pages, in work/site."""
    done = subprocess.run([sys.executable, "-m", "leaderboard.front", "--address", address])
    if done.returncode:
        raise typer.Exit(done.returncode)
