"""`rvb submit`: a submission checked, built, published and committed, and the text of its pull request."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from typing import Annotated

import typer

from benchmark.commands import check as checking
from benchmark.commands.diff import comparison
from benchmark.commands.publish import publish_rows
from benchmark.commands.terminal import JobsOption, console, resumable
from benchmark.runtime import git
from benchmark.runtime.errors import BenchmarkError

MAIN = ("main", "master")  # branches on which nothing is committed
GENERATED = ("pipelines", "dvc.yaml", "dvc.lock", "leaderboard/results", "README.md", "CHANGELOG.md")


def submit(
    name: Annotated[str, typer.Argument(help="<submission>, a folder below submissions/.")],
    reason: Annotated[str, typer.Option(help="Why numbers that are published already change.")] = "",
    jobs: JobsOption = None,
) -> None:
    """Check, build, publish and commit a submission on a branch of its own; print the pull request's text."""
    from benchmark.loading import submissions
    from benchmark.loading.run_settings import run_settings
    from benchmark.pipeline import repro
    from benchmark.pipeline.gpus import default_jobs

    submission, base = submissions.load(name), _base()
    _check_tree(name)
    checking.check(name)
    branch = _branch(name)
    tracks: dict[str, list[str]] = {}
    for variant, entry in submission.variants.items():
        for track in entry.tracks:
            tracks.setdefault(track, []).append(f"{name}-{variant}")
    for track, rows in tracks.items():
        with resumable():
            repro.repro(track, jobs or default_jobs(run_settings()), console.print, rows)
        publish_rows(track, rows, reason)
    if subprocess.run([sys.executable, "-m", "leaderboard.readme", *tracks], check=False).returncode:
        raise BenchmarkError("README's table was not written; the error stands above")
    paths = [f"submissions/{name}", *(path for path in GENERATED if git.known(path))]
    git.run("add", "--", *paths)
    title = f"{name}: {submission.summary}"
    if git.run("status", "--porcelain", "--", *paths):
        git.run("commit", "--quiet", "-m", title)
    console.print(f"committed on the branch {branch}; the text of the pull request:\n", markup=False)
    typer.echo(f"## {title}\n\n{submission.paper.title}, {submission.paper.authors}, {submission.paper.year}\n")
    typer.echo(comparison(base, [*tracks], published=True, only=name)[0])
    console.print(f"\nnext: git push -u origin {branch}, and open a pull request from there", markup=False)


def _base() -> str:
    """Return the commit at which the branch left main."""
    for name in MAIN:
        with suppress(BenchmarkError):
            return git.merge_base(name)
    raise BenchmarkError("git knows no branch main or master here; run `git fetch origin main`")


def _check_tree(name: str) -> None:
    """Raise a BenchmarkError for changes that would not be committed, or that belong to something else."""
    allowed = (f"submissions/{name}/", *GENERATED)
    for line in git.run("status", "--porcelain", "--untracked-files=all").splitlines():
        path = line[3:].split(" -> ")[-1].strip('"')
        if not path.startswith(allowed):
            raise BenchmarkError(
                f"{path} changed too, which is no part of {name}; commit it, or put it aside with `git stash`"
            )


def _branch(name: str) -> str:
    """Return the branch that is checked out; on main begin one with the submission's name."""
    branch = git.run("branch", "--show-current").strip()
    if branch and branch not in MAIN:
        return branch
    if git.known_branch(name):
        raise BenchmarkError(f"there is a branch {name} already; run `git switch {name}`, or delete it")
    git.run("switch", "--quiet", "-c", name)
    return name
