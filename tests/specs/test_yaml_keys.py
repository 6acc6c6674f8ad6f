"""Keys and names that YAML takes for something else than text."""

from __future__ import annotations

import pytest

from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.yaml_file import read_yaml


@pytest.mark.parametrize("key", ["no", "2", "1.5", "null", "on"])
def test_a_key_that_is_no_text_is_told_to_be_quoted(tmp_path, key) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(f"variants:\n  {key}: {{title: A}}\n")
    with pytest.raises(BenchmarkError, match=r"one\.yaml: not valid YAML: the key .* is no text; put it in quotes"):
        read_yaml(path)
    path.write_text(f"variants:\n  '{key}': {{title: A}}\n")
    assert read_yaml(path) == {"variants": {key: {"title": "A"}}}
