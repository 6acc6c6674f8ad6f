"""The only reader of params.yaml."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pydantic import ValidationError

from benchmark.runtime.errors import explain
from benchmark.runtime.paths import PARAMS
from benchmark.runtime.yaml_file import read_yaml
from benchmark.specs.run import RunSettings

_engine: ContextVar[str] = ContextVar("engine", default="")


def run_settings() -> RunSettings:
    """`params.yaml`; a BenchmarkError for an unknown key or a bad value."""
    try:
        settings = RunSettings.model_validate(read_yaml(PARAMS) if PARAMS.exists() else {})
    except ValidationError as error:
        raise explain(error, RunSettings, str(PARAMS)) from None
    chosen: dict[str, Any] = {"engine": _engine.get()} if _engine.get() else {}
    return settings.model_copy(update={"evaluate": settings.evaluate.model_copy(update=chosen)})


@contextmanager
def using_engine(engine: str) -> Iterator[None]:
    """AutoAttack's engine inside the block, in place of params.yaml's; "" leaves that."""
    token = _engine.set(engine)
    try:
        yield
    finally:
        _engine.reset(token)
