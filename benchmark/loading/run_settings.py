"""The only reader of params.yaml."""

from __future__ import annotations

from pydantic import ValidationError

from benchmark.runtime.errors import explain
from benchmark.runtime.paths import PARAMS
from benchmark.runtime.yaml_file import read_yaml
from benchmark.specs.run import RunSettings


def run_settings() -> RunSettings:
    """`params.yaml`; a BenchmarkError for an unknown key or a bad value."""
    try:
        return RunSettings.model_validate(read_yaml(PARAMS) if PARAMS.exists() else {})
    except ValidationError as error:
        raise explain(error, RunSettings, str(PARAMS)) from None
