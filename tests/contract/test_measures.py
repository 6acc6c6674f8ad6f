"""What every measure of benchmark/studies/measures keeps to."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

from benchmark.studies import checks


@pytest.mark.parametrize("name", sorted(path.stem for path in checks.MEASURES.glob("[a-z]*.py")))
def test_a_measure_takes_a_model_images_and_labels_and_a_seed_by_name(name) -> None:
    function = importlib.import_module(f"benchmark.studies.measures.{name}").measure
    parameters = inspect.signature(function).parameters
    assert [*parameters][:3] == ["model", "images", "labels"]
    assert parameters["seed"].kind is inspect.Parameter.KEYWORD_ONLY
    assert all(p.kind is p.KEYWORD_ONLY for p in [*parameters.values()][3:])
    assert Path(inspect.getfile(function)).absolute() == (checks.MEASURES / f"{name}.py").absolute()
