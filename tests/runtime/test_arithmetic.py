"""Portable arithmetic, fixed before the libraries are imported; and the name of what computes."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import torch

from benchmark.runtime import arithmetic, machine
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.machine import device_name, gpu_name, processor

PORTABLE = arithmetic.possible("portable") == "portable"
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in arithmetic.VARIABLES}
needs_avx2 = pytest.mark.skipif(not PORTABLE, reason="portable arithmetic needs an x86-64 with AVX2")


def python(code: str) -> str:
    """What a fresh interpreter prints, in which nothing is fixed yet."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=ENVIRONMENT).stdout.strip()


@pytest.mark.slow
@needs_avx2
def test_what_is_fixed_reaches_torch_numpy_and_mkl() -> None:
    printed = python(
        "from benchmark.runtime import arithmetic; arithmetic.fix('portable')\n"
        "import numpy, torch; from benchmark.runtime.machine import machine\n"
        "numpy_uses = numpy._core._multiarray_umath.__cpu_features__\n"
        "print(machine()['capability'], machine()['blas'], numpy_uses['X86_V4'], arithmetic.in_force())"
    )
    assert re.fullmatch(r"AVX2 scipy-openblas \S+, Haswell; MKL \S+, COMPATIBLE False portable", printed)


def test_native_arithmetic_leaves_everything_alone() -> None:
    printed = python(
        "import os; before = dict(os.environ); from benchmark.runtime import arithmetic; arithmetic.fix('native')\n"
        "print(os.environ == before, arithmetic.in_force())"
    )
    assert printed == "True native"


@needs_avx2
def test_too_late_is_refused(monkeypatch) -> None:
    monkeypatch.delenv("MKL_CBWR")
    with pytest.raises(BenchmarkError, match="before import of torch and numpy"):
        arithmetic.fix("portable")


def test_another_kind_of_processor_is_native(monkeypatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    arithmetic.fix("portable")
    assert arithmetic.in_force() == "native"


@pytest.mark.slow
def test_tests_run_in_native_arithmetic_where_a_plugin_imported_numpy_first() -> None:
    """As plugins of pytest do on some machines with a GPU."""
    code = "import sys, numpy, pytest; sys.exit(pytest.main(['tests/runtime/test_errors.py', '-p', 'no:xdist', '--collect-only']))"
    assert "arithmetic: native, since a pytest plugin imported" in python(code)


def test_a_package_that_is_not_installed_is_left_out(monkeypatch) -> None:
    real = machine.version

    def version(package: str) -> str:
        if package == "robustbench":
            raise machine.PackageNotFoundError(package)
        return real(package)

    monkeypatch.setattr(machine, "version", version)
    environment = machine.environment()
    assert "robustbench" not in environment
    assert environment["torch"]


def test_the_processor_is_named_with_family_and_model_without_torch(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert device_name("cpu") == processor() != ""


@pytest.mark.parametrize(("wanted", "asked"), [("cuda", 0), ("auto", 0), ("cuda:1", 1)])
def test_a_gpu_is_named_by_another_process_where_one_is_asked_for_and_there(monkeypatch, wanted, asked) -> None:
    """A process that asks by itself starts CUDA, which its forks could then not use."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: pytest.fail("this process asked"))
    monkeypatch.setattr("sys.executable", "echo")  # which prints what it is given
    gpu_name.cache_clear()
    assert device_name(wanted) == f"-c import torch; print(torch.cuda.get_device_name({asked}))"
    gpu_name.cache_clear()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert device_name(wanted) == processor()
    gpu_name.cache_clear()


def test_a_gpu_that_does_not_start_is_one_line(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr("sys.executable", "false")
    gpu_name.cache_clear()
    with pytest.raises(BenchmarkError, match="does not tell its name"):
        gpu_name()
