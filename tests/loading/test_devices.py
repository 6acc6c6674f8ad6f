"""The device of params.yaml: where training by Fabric and the stages run."""

from __future__ import annotations

import pytest
import torch

from benchmark.loading.fitting import fabric_of
from benchmark.runtime import torch_setup
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.run import TrainRun
from benchmark.training.ranks import Ranks


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
@pytest.mark.parametrize(("device", "used"), [("cuda", [0, 1, 0]), ("auto", [0, 1, 0]), ("cuda:1", [1, 1, 1])])
def test_processes_that_share_a_training_have_a_gpu_each_unless_one_is_named(device, used) -> None:
    ranks = [Ranks(rank, 3, lambda _, sent: sent) for rank in range(3)]
    run = TrainRun(device=device, processes=3)
    assert [fabric_of(run, rank).device for rank in ranks] == [torch.device("cuda", index) for index in used]


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_precisions_that_differ_by_processor_need_native_arithmetic_on_the_cpu(monkeypatch, precision) -> None:
    run = TrainRun(precision=precision)
    monkeypatch.setattr("benchmark.runtime.arithmetic.in_force", lambda: "native")
    assert fabric_of(run).device == torch.device("cpu")
    monkeypatch.setattr("benchmark.runtime.arithmetic.in_force", lambda: "portable")
    with pytest.raises(
        BenchmarkError, match=rf"^params\.yaml: precision {precision} on the CPU .* `arithmetic: native`"
    ):
        fabric_of(run)
    assert fabric_of(TrainRun(precision="64-true")).device == torch.device("cpu")


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(BenchmarkError, match=r"asks for device cuda:2, but torch finds 2; the first is cuda:0"):
        torch_setup.set_up("cuda:2")


def test_a_device_that_nobody_knows_is_refused() -> None:
    with pytest.raises(BenchmarkError, match="unknown device 'gpu'"):
        torch_setup.set_up("gpu")
