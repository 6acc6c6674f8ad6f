"""Files: hashes, and writes that either happen whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from benchmark.runtime.errors import BenchmarkError, explain

Model = TypeVar("Model", bound=BaseModel)

_ASIDE = re.compile(r"\..+\.\d+")  # what `write` calls a file until it is whole


def sha256_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def version(path: Path | os.DirEntry[str]) -> tuple[int, ...]:
    """What changes when a file is written anew, its size and mtime kept or not: what was made of it is good until then."""
    seen = path.stat()
    return seen.st_dev, seen.st_ino, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_size


def write(path: Path, data: str | bytes) -> None:
    """Writes aside, then renames: after a crash or a full disk the old file or the new one stands, never half."""
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
    """Whether a file is what a killed `write` left."""
    return _ASIDE.fullmatch(path.name) is not None and path.is_file()


def to_json(value: Any) -> bytes:
    """Canonical JSON: sorted keys, so equal values are equal bytes."""
    return (json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def write_json(path: Path, value: Any) -> None:
    """Canonical JSON, written whole or not at all."""
    write(path, to_json(value))


def read_json(path: Path, again: str = "delete it and run `rvb repro`") -> Any:
    """Raises BenchmarkError for a missing or damaged file; `again` says what to do about a damaged one."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise BenchmarkError(f"{path} is missing; run `rvb repro` to build it") from None
    except ValueError as error:
        raise BenchmarkError(f"{path} is no valid JSON ({error}); {again}") from None


def read_model(path: Path, model: type[Model], again: str = "delete it and run `rvb repro`") -> Model:
    """A JSON file as such a model; raises as `read_json`, and where the content does not fit, with its place."""
    content = read_json(path, again)
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise BenchmarkError(f"{explain(error, model, str(path))}; {again}") from None


def put_folder(built: Path, target: Path) -> None:
    """Moves a finished folder to its place; whatever stood there goes first. What a killed `write` left aside is no part of
    it: resumed work would have other bytes than work that was never killed.
    """
    for left in [path for path in built.rglob(".*") if is_aside(path)]:
        left.unlink()
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        shutil.rmtree(target)
    os.replace(built, target)
