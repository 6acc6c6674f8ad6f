"""Files: hashes, and writes that happen completely or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from benchmark.runtime.errors import BenchmarkError, explain

Model = TypeVar("Model")

_ASIDE = re.compile(r"\..+\.\d+")  # the name of `write`'s temporary file


def sha256_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def version(path: Path | os.DirEntry[str]) -> tuple[int, ...]:
    """Return numbers that change when a file is rewritten, even with the same size and mtime."""
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size


def write(path: Path, data: str | bytes) -> None:
    """Write to a temporary file, then rename: after a crash or with a full disk the old or the new file is there, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("wb") as handle:
            handle.write(data.encode() if isinstance(data, str) else data)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def is_aside(path: Path) -> bool:
    """Return whether a file was left by a killed `write`."""
    return _ASIDE.fullmatch(path.name) is not None and path.is_file()


def to_json(value: Any) -> bytes:
    """Return canonical JSON: keys are sorted, so equal values are equal bytes."""
    return (json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def write_json(path: Path, value: Any) -> None:
    """Write canonical JSON, completely or not at all."""
    write(path, to_json(value))


def read_json(path: Path, again: str = "delete it and run `rvb repro`") -> Any:
    """Return JSON values. Raise BenchmarkError for a missing or damaged file; `again` says what to do about it."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise BenchmarkError(f"{path} is missing; {again.removeprefix('delete it and ')}") from None
    except ValueError as error:
        raise BenchmarkError(f"{path} is no valid JSON ({error}); {again}") from None


def read_model(path: Path, model: type[Model], again: str = "delete it and run `rvb repro`") -> Model:
    """Return a JSON file as a model, or as a dict of models. Raise as `read_json`, and for content that does not fit."""
    content = read_json(path, again)
    try:
        return TypeAdapter(model).validate_python(content)
    except ValidationError as error:
        raise BenchmarkError(f"{explain(error, model, str(path))}; {again}") from None


def put_folder(built: Path, target: Path) -> None:
    """Move a finished folder to its place, and remove what was there.

    Files that a killed `write` left are removed: resumed work must have the same bytes as uninterrupted work.
    """
    for left in [path for path in built.rglob(".*") if is_aside(path)]:
        left.unlink()
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        shutil.rmtree(target)
    os.replace(built, target)
