"""What git holds of this checkout, read without touching the working tree."""

from __future__ import annotations

import subprocess
from pathlib import Path

from benchmark.runtime.errors import BenchmarkError

WRITTEN_BY_RUNS = ("**/dvc.lock", "pipelines/**/leaderboard.*", "leaderboard/results/*/reproduced.json")


def merge_base(base: str) -> str:
    """The commit at which this branch left `base`, a branch or commit; where there is no such branch, origin's is taken.
    Raises BenchmarkError: no git repository, no such branch, or no commit that both have.
    """
    known = [
        name for name in (base, f"origin/{base}") if _git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    ]
    if not known:
        raise BenchmarkError(f"git knows no branch or commit {base!r} here; name another by --base, or `git fetch` it")
    found = _git("merge-base", known[0], "HEAD")
    if not found:
        raise BenchmarkError(
            f"{known[0]} and HEAD have no commit in common; fetch the whole history (`git fetch --unshallow`)"
        )
    return found.decode().strip()


def clean_commit() -> str:
    """Return the first 12 digits of the commit that is checked out. Raises BenchmarkError: no commit, or uncommitted
    changes. Files that a run itself writes do not count.
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
    """The files below `folder` at `commit`, in order; none where the folder was not there."""
    listed = _git("ls-tree", "-r", "-z", "--name-only", commit, "--", f"{folder.as_posix()}/") or b""
    return [Path(name.decode()) for name in listed.split(b"\0") if name]


def read_at(commit: str, path: Path) -> bytes | None:
    """A file's bytes at `commit`; None where it was not there."""
    return _git("cat-file", "blob", f"{commit}:{path.as_posix()}")


def changed_since(commit: str) -> set[Path]:
    """Files that differ from `commit` in the working tree, those that git does not know yet among them."""
    listed = (_git("diff", "-z", "--name-only", commit) or b"") + (
        _git("ls-files", "-z", "-o", "--exclude-standard") or b""
    )
    return {Path(name.decode()) for name in listed.split(b"\0") if name}


def run(*arguments: str) -> str:
    """Return what git prints; raise a BenchmarkError with its last line where it fails."""
    done = _call(*arguments)
    if done.returncode:
        words = (done.stderr or done.stdout).decode().strip().splitlines() or ["no output"]
        raise BenchmarkError(f"git {arguments[0]} failed: {words[-1]}")
    return done.stdout.decode()


def known(path: str) -> bool:
    """Whether git has a path, or it is here for git to take."""
    return Path(path).exists() or bool(_git("ls-files", "--", path))


def known_branch(name: str) -> bool:
    return _git("rev-parse", "--verify", "--quiet", f"refs/heads/{name}") is not None


def _git(*arguments: str) -> bytes | None:
    """What git prints; None where it fails."""
    done = _call(*arguments)
    return None if done.returncode else done.stdout


def _call(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["git", *arguments], capture_output=True, check=False)
    except FileNotFoundError:
        raise BenchmarkError("git is not installed; install it") from None
