"""Errors for people: one line that says what is wrong and what to do."""

from __future__ import annotations

import errno
import io
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

FULL_MEMORY = re.compile(  # the words of Python, torch and its libraries, for GPU and main memory
    r"MemoryError|OutOfMemoryError|out of memory|can't allocate memory|Cannot allocate memory|bad_alloc|ALLOC_FAILED"
)

Result = TypeVar("Result")
LEFT_OUT: dict[str, None] = {}  # the lines of what `unless_broken` left out in this process


class BenchmarkError(Exception):
    """An error that the user can act on; its text is one line."""


class OutOfMemory(BenchmarkError):
    """A sandboxed process ran out of memory."""


# not what code that is wrong causes, such as a device-side assert
LOST_GPU = re.compile(r"CUDA error: .*(is lost|unspecified launch failure|ECC|hardware|unknown error|EXECUTION_FAILED)")


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that GPU or main memory did not suffice, by the words of Python, torch or a process."""
    if isinstance(error, OutOfMemory | MemoryError):
        return True
    words = f"{type(error).__name__}: {error}"
    return isinstance(error, RuntimeError) and FULL_MEMORY.search(words) is not None


def unless_broken(place: str, load: Callable[[], Result]) -> Result | None:
    """Load one of many parts that anybody may have written; return None, and say so once on stderr, if that fails.

    Args:
        place: of the part, for errors that do not name it.
    """
    try:
        return load()
    except Exception as error:  # whatever its files raise, the other parts load
        words = str(error) if isinstance(error, BenchmarkError) else f"{place}: {said(error)[:300]}"
        if words not in LEFT_OUT:
            LEFT_OUT[words] = None
            print(f"warning: left out: {words}", file=sys.stderr, flush=True)
        return None


def near_miss(word: str, known: Iterable[str]) -> str:
    """Return '; did you mean X?' or '; known: A, B' for a name that is none of `known`."""
    names = sorted(known)
    close = get_close_matches(word, names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(names)}" if names else "; none is known"


def explain(error: ValidationError, model: type, source: str) -> BenchmarkError:
    """Return the first error in a file as one line with its place and, for an unknown key, the near miss."""
    problems = error.errors()
    # unknown keys first: a typo also leaves a key missing
    first = next((e for e in problems if e["type"] == "extra_forbidden"), problems[0])
    where = ".".join(str(part) for part in first["loc"]) or "the file"
    if first["type"] == "extra_forbidden":
        known = fields_at(model, first["loc"][:-1])
        return BenchmarkError(f"{source}: unknown key {where!r}{near_miss(str(first['loc'][-1]), known)}")
    return BenchmarkError(f"{source}: {where}: {first['msg'].removeprefix('Value error, ')}")


def fields_at(model: type, path: tuple[int | str, ...]) -> set[str]:
    """Return the names of the fields of the model at `path` inside `model`; empty if it is no model."""
    current: Any = model
    for part in path:
        if isinstance(current, type) and issubclass(current, BaseModel) and part in current.model_fields:
            current = current.model_fields[str(part)].annotation
        else:
            current = next((a for a in getattr(current, "__args__", ())[::-1] if a not in (type(None), ...)), None)
        while not isinstance(current, type) and getattr(current, "__origin__", None) not in (dict, tuple):
            options = [a for a in getattr(current, "__args__", ()) if a is not type(None)]
            if not options:
                return set()
            current = options[0]
    return set(current.model_fields) if isinstance(current, type) and issubclass(current, BaseModel) else set()


def said(error: BaseException) -> str:
    """Return an exception of somebody else's code as one line."""
    if isinstance(error, BenchmarkError):
        return str(error)
    if isinstance(error, SystemExit):
        return f"it calls sys.exit({error.code!r}); raise an error instead"
    words = re.sub(r"(?s)(Weights only load failed).*", r"\1: it is no file of model.state_dict()", str(error))
    return f"{type(error).__name__}: {' '.join(words.split())}"


def run(main: Callable[[], None]) -> None:
    """Run a command; end it with one line on stderr and exit status 1 for an error that the user can act on.

    These are a BenchmarkError, an exception or `sys.exit` of submitted code, a full disk or memory, and a place
    without write permission.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal in ASCII shows ? for a dash, and the command goes on
    try:
        main()
    except OutOfMemory as error:
        sys.exit(f"error: {_of_the_machine(error)}")
    except BenchmarkError as error:
        sys.exit(f"error: {error}")
    except (Exception, SystemExit) as error:
        if problem := _of_the_machine(error):
            sys.exit(f"error: {problem}")
        place = in_submission(error)
        if place is None:
            raise
        sys.exit(f"error: {place}: {said(error)}")


def _of_the_machine(error: BaseException) -> str:
    """Return what to do about a full disk or memory, a lost GPU, or a missing write permission; "" for any other error."""
    if problem := of_disk_or_gpu(error):
        return problem
    number, place = (error.errno, error.filename) if isinstance(error, OSError) else (None, None)
    if place and number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"permission denied at {place}; let this user read and write there, and run the same command again"
    words = " ".join(str(error).split()) or type(error).__name__
    if out_of_memory(error):
        return (
            f"out of memory ({words.split('. ')[0]}); use a device with more, or a smaller batch_size, training's in "
            "submission.yaml or evaluation's in the track, and run the same command again, finished work is kept"
        )
    return ""


def of_disk_or_gpu(error: BaseException) -> str:
    """Return what to do about a full disk or a lost GPU; "" for any other error."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" while writing {error.filename}" if error.filename else ""
        return f"the disk is full{where}; free some space and run the same command again, finished work is kept"
    first = str(error).strip().partition("\n")[0]
    if isinstance(error, RuntimeError) and LOST_GPU.search(first):
        return f"the GPU failed ({first}); see what `nvidia-smi` says, and run the same command again, finished work is kept"
    return ""


def in_submission(error: BaseException, folder: Path = Path("submissions")) -> str | None:
    """Return the last line of submitted code, or of code in `folder`, that an exception passed through; else None."""
    root = folder.absolute()
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_relative_to(root)]
    return f"{folder / Path(frames[-1].filename).relative_to(root)}, line {frames[-1].lineno}" if frames else None
