"""What goes to every machine: the files of the present commit, and how to reach the DVC remote."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from fnmatch import fnmatch

from benchmark.pipeline.cluster.site import Shipment
from benchmark.runtime.errors import BenchmarkError

# what the pipeline itself writes among the files that git holds; and what travels by itself or concerns the coordinator alone
WRITTEN = (".dvc/.gitignore", "dvc.lock", "*/dvc.lock", "pipelines/*/leaderboard.json", "pipelines/*/leaderboard.csv")
OWN = (".dvc/config", "resources.yaml")
VARIABLES = ("OMP_NUM_THREADS",)  # that results depend on


def shipment(remote: Mapping[str, str]) -> Shipment:
    """The present commit; a BenchmarkError where files differ from it, since other machines would not have them."""
    if edited := edited_files():
        more = f" and {len(edited) - 1} more" if len(edited) > 1 else ""
        raise BenchmarkError(
            f"{edited[0]}{more} differs from the commit that other machines get; commit it or put it away"
        )
    commit = _git("rev-parse", "HEAD").strip()
    archive = subprocess.run(["git", "archive", "--format=tar", commit], capture_output=True, check=True).stdout
    variables = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    variables |= {name: os.environ[name] for name in VARIABLES if name in os.environ}
    return Shipment(commit, archive, _config(remote), variables)


def edited_files() -> list[str]:
    """Files that differ from the present commit, but for those that may."""
    edited = [line[3:] for line in _git("status", "--porcelain", "--untracked-files=normal").splitlines()]
    return [path for path in edited if not any(fnmatch(path.strip('"'), pattern) for pattern in (*WRITTEN, *OWN))]


def _config(remote: Mapping[str, str]) -> str:
    """As DVC writes its own: passwords and URLs with `#` or commas in quotes."""
    from configobj import ConfigObj

    options = {key: value for key, value in remote.items() if key != "name"}
    sections = {"core": {"no_scm": "true", "remote": remote["name"]}, f'remote "{remote["name"]}"': options}
    return "".join(f"{line}\n" for line in ConfigObj(sections).write())


def tracked_files() -> set[str]:
    return {*_git("ls-files", "-z").split("\0")}


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise BenchmarkError("git is not installed; install it: other machines get the files of a commit") from None
    if done.returncode:
        raise BenchmarkError(f"git {arguments[0]} failed: {' '.join(done.stderr.split())}; commit the checkout first")
    return done.stdout
