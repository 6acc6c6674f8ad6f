"""The device of params.yaml: where training by Fabric and the stages run."""

from __future__ import annotations

import pytest
import torch

from benchmark.loading.fitting import fabric_of
from benchmark.runtime import torch_setup
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.run import TrainRun


@pytest.fixture
def two_gpus(monkeypatch) -> None:
    """What torch and Fabric ask before they touch a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr("lightning_fabric.accelerators.cuda.num_cuda_devices", lambda: 2)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("device", "used"),
    [("cpu", "cpu"), ("cpu:0", "cpu"), ("cuda", "cuda:0"), ("cuda:0", "cuda:0"), ("cuda:1", "cuda:1")],
)
def test_training_runs_on_the_device_that_is_named(device, used) -> None:
    assert fabric_of(TrainRun(device=device)).device == torch.device(used)


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(BenchmarkError, match=r"asks for device cuda:2, but torch finds 2; the first is cuda:0"):
        torch_setup.set_up("cuda:2")


def test_a_device_that_nobody_knows_is_refused() -> None:
    with pytest.raises(BenchmarkError, match="unknown device 'gpu'"):
        torch_setup.set_up("gpu")
