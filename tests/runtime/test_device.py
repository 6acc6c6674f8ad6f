"""The name of what computes."""

from __future__ import annotations

import sys

import pytest
import torch

from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.machine import device_name, gpu_name, processor


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
