"""The engine's tests of equality to the bit, in the processor's own kernels: portable ones round by place in a batch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmark.runtime import arithmetic

FILES = ("test_class_token.py", "test_quicker.py", "test_search.py")


@pytest.mark.slow
@pytest.mark.long
def test_an_image_is_treated_alike_wherever_it_stands_to_the_bit_in_native_arithmetic() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in arithmetic.VARIABLES}
    files = [str(Path(__file__).with_name(name)) for name in FILES]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *files]
    result = subprocess.run(command, capture_output=True, text=True, env={**environment, "TEST_ARITHMETIC": "native"})
    assert result.returncode == 0, result.stdout
