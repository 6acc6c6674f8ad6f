"""What git knows of this checkout, read without touching the working tree."""

from __future__ import annotations

import subprocess
from pathlib import Path

from benchmark.runtime.errors import BenchmarkError

WRITTEN_BY_RUNS = ("**/dvc.lock", "pipelines/**/leaderboard.*", "leaderboard/results/*/reproduced.json")


def merge_base(base: str) -> str:
    """Return the commit at which this branch left `base`, a branch or commit, else `origin/<base>`.

    Raise BenchmarkError without a git repository, such a branch, or a common commit.
    """
    names = (base, f"origin/{base}")
    branch = next((n for n in names if _git("rev-parse", "--verify", "--quiet", f"{n}^{{commit}}")), None)
    if branch is None:
        raise BenchmarkError(f"git knows no branch or commit {base!r} here; name another by --base, or `git fetch` it")
    commit = _git("merge-base", branch, "HEAD")
    if not commit:
        raise BenchmarkError(f"{branch} and HEAD have no commit in common; fetch the whole history (`git fetch --unshallow`)")
    return commit.decode().strip()


def clean_commit() -> str:
    """Return the first 12 digits of the commit that is checked out.

    Raise BenchmarkError without a commit, or for uncommitted changes, except in files that a run itself writes.
    """
    commit = _git("rev-parse", "--verify", "--quiet", "HEAD")
    changed = _git("status", "--porcelain", "--", ".", *(f":(exclude,glob){path}" for path in WRITTEN_BY_RUNS))
    if commit is None or changed is None:
        raise BenchmarkError("git knows no commit of this checkout, so none can be noted")
    if changed:
        first = changed.decode().splitlines()[0][3:]
        raise BenchmarkError(f"uncommitted changes, such as {first}: no commit can be noted; commit or undo them")
    return commit.decode()[:12]


def files_at(commit: str, folder: Path) -> list[Path]:
    """Return the files below `folder` at `commit`, in order; none if the folder did not exist."""
    listed = _git("ls-tree", "-r", "-z", "--name-only", commit, "--", f"{folder.as_posix()}/") or b""
    return [Path(name.decode()) for name in listed.split(b"\0") if name]


def read_at(commit: str, path: Path) -> bytes | None:
    """Return a file's bytes at `commit`; None if it did not exist."""
    return _git("cat-file", "blob", f"{commit}:{path.as_posix()}")


def changed_since(commit: str) -> set[Path]:
    """Return the files that differ from `commit` in the working tree, including untracked files."""
    listed = (_git("diff", "-z", "--name-only", commit) or b"") + (_git("ls-files", "-z", "-o", "--exclude-standard") or b"")
    return {Path(name.decode()) for name in listed.split(b"\0") if name}


def run(*arguments: str) -> str:
    """Return git's output. Raise BenchmarkError with its last line if it fails."""
    done = _call(*arguments)
    if done.returncode:
        words = (done.stderr or done.stdout).decode().strip().splitlines() or ["no output"]
        raise BenchmarkError(f"git {arguments[0]} failed: {words[-1]}")
    return done.stdout.decode()


def known(path: str) -> bool:
    """Return whether git has a path, or the path exists here."""
    return Path(path).exists() or bool(_git("ls-files", "--", path))


def known_branch(name: str) -> bool:
    return _git("rev-parse", "--verify", "--quiet", f"refs/heads/{name}") is not None


def _git(*arguments: str) -> bytes | None:
    """Return git's output; None if it fails."""
    done = _call(*arguments)
    return None if done.returncode else done.stdout


def _call(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["git", *arguments], capture_output=True, check=False)
    except FileNotFoundError:
        raise BenchmarkError("git is not installed; install it") from None
