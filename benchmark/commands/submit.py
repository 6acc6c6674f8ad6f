"""A submission: `rvb new` begins it, `rvb check` tries it, `rvb submit` builds, publishes and commits it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import warnings
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from benchmark.commands.diff import comparison
from benchmark.commands.publish import publish_rows
from benchmark.commands.terminal import JobsOption, JsonOption, ReasonOption, console, resumable
from benchmark.pipeline import repro
from benchmark.pipeline.gpus import default_jobs
from benchmark.records.check import CheckReport
from benchmark.runtime import files, git
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import submissions
from benchmark.specs.base import to_json
from benchmark.specs.run_settings import run_settings

TEMPLATE = Path(__file__).parent / "template"
NAME = re.compile(r"(?P<author>[A-Z][A-Za-z]*)(?P<year>(?:19|20)\d\d)(?P<word>[A-Z][A-Za-z0-9]*)")
LONGEST = 60  # characters of a name, which becomes part of file names
MAIN = ("main", "master")  # branches on which nothing is committed
GENERATED = ("pipelines", "dvc.yaml", "dvc.lock", "leaderboard/results", "README.md", "CHANGELOG.md")


def new(
    name: Annotated[str, typer.Argument(help="<Name><Year><Word>, such as Doe2026Tiny.")],
    title: Annotated[str, typer.Option(help="The paper's (default: the name's last word).")] = "",
    authors: Annotated[str, typer.Option(help="As a citation names them (default: the name's first part).")] = "",
    url: Annotated[str, typer.Option(help="Where the paper can be read.")] = "",
) -> None:
    """Start a submission: a folder with a small vision transformer for digits, to be changed into yours."""
    for path in write_submission(name, title, authors, url):
        console.print(f"wrote {path}")
    console.print(f"next: edit them, then `rvb check {name}` and `rvb repro {name}-small`")


def write_submission(name: str, title: str = "", authors: str = "", url: str = "") -> list[Path]:
    """Write submissions/<name>, submission.yaml last: it makes the folder a submission. Return the files.

    Raise a BenchmarkError for a name that is not <Name><Year><Word>, or a folder that exists, in any letter case.
    """
    parts = NAME.fullmatch(name)
    if not parts or len(name) > LONGEST:
        raise BenchmarkError(
            f"bad name {name[:LONGEST]!r}: use <Name><Year><Word> of at most {LONGEST} characters, such as Doe2026Tiny"
        )
    taken = {path.name.lower(): path for path in submissions.FOLDER.iterdir()}
    if name.lower() in taken:
        raise BenchmarkError(f"{taken[name.lower()]} exists; choose another word, or delete the folder")
    quoted = {"title": title or parts["word"], "authors": authors or parts["author"], "url": url}
    quoted["shown"] = f"{parts['word']}, ViT of width 32"
    given = {"name": name, **parts.groupdict()}
    given |= {key: json.dumps(text, ensure_ascii=False) for key, text in quoted.items()}
    written = []
    for source in sorted(TEMPLATE.glob("*.txt"), key=lambda path: path.stem == "submission.yaml"):
        target = submissions.FOLDER / name / source.stem
        files.write(target, Template(source.read_text()).substitute(given))
        written.append(target)
    return written


def check(
    name: Annotated[str, typer.Argument(help="<submission>, or one of its rows, <submission>-<variant>.")],
    as_json: JsonOption = False,
) -> None:
    """Try a submission; nothing is trained. Exit status 1 if a check fails."""
    warnings.simplefilter("ignore", FutureWarning)  # torch's, of its own modules
    from benchmark.evaluation.check_submission import check_submission
    from benchmark.runtime.torch_setup import set_up
    from benchmark.steps.pretrained import check_file

    submission, _, variant = name.removeprefix("submissions/").rstrip("/").partition("-")
    device = set_up(run_settings().evaluate.device)
    report = check_submission(submission, variant, device, lambda line: typer.echo(line, err=True), check_file)
    if as_json:
        typer.echo(to_json(report), nl=False)
    else:
        _print(report)
    if report.failed:
        raise typer.Exit(1)


def _print(report: CheckReport) -> None:
    """Print a line a check, by row, then the notes for maintainers."""
    for place, checks in groupby(report.checks, lambda check: (check.row, check.track)):
        console.print(" on ".join(place) if place[0] else report.submission, style="bold")
        for check in checks:
            console.print(f"  {'ok  ' if check.ok else 'FAIL'}  {check.name}: {check.found}", markup=False)
    if report.notes:
        console.print("what a maintainer would look at", style="bold")
    for note in report.notes:
        where = f"{note.row} on {note.track}: " if note.row else ""
        console.print(f"  {where}{note.name}: {note.found}", markup=False)
    count = len(report.checks)
    words = f"{len(report.failed)} of {count} checks failed" if report.failed else f"all {count} checks passed"
    console.print(f"{report.submission}: {words}")


def submit(
    name: Annotated[str, typer.Argument(help="<submission>, a folder below submissions/.")],
    reason: ReasonOption = "",
    jobs: JobsOption = None,
) -> None:
    """Check, build, publish and commit a submission on a branch of its own; print the pull request's text."""
    submission, base = submissions.load(name := name.removeprefix("submissions/").rstrip("/")), _base()
    _check_tree(name)
    check(name)
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
