"""The name of what computes."""

from __future__ import annotations

import os
import sys
from functools import partial

import pytest
import torch

from benchmark.runtime.device import device_name, gpu_name, processor


def test_the_processor_is_named_with_family_and_model_without_torch(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert device_name("cpu") == processor() != ""


def named(here: int, index: int) -> str:
    """Stands in for torch's function, which starts CUDA in the process that calls it."""
    return f"GPU {index}, asked by {'this' if os.getpid() == here else 'another'} process"


@pytest.mark.parametrize(("wanted", "asked"), [("cuda", 0), ("auto", 0), ("cuda:1", 1)])
def test_a_gpu_is_named_where_one_is_asked_for_and_there(monkeypatch, wanted, asked) -> None:
    here = os.getpid()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", partial(named, here))
    gpu_name.cache_clear()
    assert device_name(wanted) == f"GPU {asked}, asked by another process"
    gpu_name.cache_clear()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert device_name(wanted) == processor()
    gpu_name.cache_clear()
