"""The name of what computes."""

from __future__ import annotations

import sys

import pytest
import torch

from benchmark.runtime.device import device_name, processor


def test_the_processor_is_named_with_family_and_model_without_torch(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert device_name("cpu") == processor() != ""


@pytest.mark.parametrize(("wanted", "asked"), [("cuda", None), ("auto", None), ("cuda:1", "cuda:1")])
def test_a_gpu_is_named_where_one_is_asked_for_and_there(monkeypatch, wanted, asked) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda which=None: f"GPU {which}")
    assert device_name(wanted) == f"GPU {asked}"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_name(wanted) == processor()
