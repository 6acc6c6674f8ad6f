"""The device of params.yaml: where training by Fabric and the stages run."""

from __future__ import annotations

import pytest
import torch

from benchmark.runtime import torch_setup
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import run_settings
from benchmark.specs.run_settings import RunSettings, TrainRun
from benchmark.training.fitting import fabric_of
from benchmark.training.ranks import Ranks


@pytest.fixture
def two_gpus(monkeypatch) -> None:
    """What torch and Fabric ask before they touch a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr("lightning_fabric.accelerators.cuda.num_cuda_devices", lambda: 2)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("device", ["cpu", "cpu:0", "cuda", "cuda:0", "cuda:1"])
def test_training_runs_on_the_device_that_is_named(device) -> None:
    used = {"cpu:0": "cpu", "cuda": "cuda:0"}.get(device, device)
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
    words = rf"^params\.yaml: precision {precision} on the CPU .* `arithmetic: native`"
    with pytest.raises(BenchmarkError, match=words):
        fabric_of(run)
    assert fabric_of(TrainRun(precision="64-true")).device == torch.device("cpu")


@pytest.mark.parametrize("setting", ["tf32", "compile"])
def test_settings_for_a_gpu_are_refused_on_the_cpu(setting) -> None:
    words = rf"^params\.yaml, train: {setting} is for a GPU, .* set `device: cuda` or `{setting}: false`$"
    with pytest.raises(BenchmarkError, match=words):
        fabric_of(TrainRun(**{setting: True}))
    assert {*TrainRun().model_dump()} == {"seed", "device", "precision"}, "what is off changes no settings"
    assert TrainRun(**{setting: True}).model_dump()[setting] is True


def flags() -> tuple[bool, bool]:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


def test_tensor_float32_is_for_the_block_alone() -> None:
    before, seen = flags(), []
    with torch_setup.tensor_float32(True):
        seen.append(flags())
        with torch_setup.tensor_float32(False):
            seen.append(flags())
        seen.append(flags())
    assert [*seen, flags()] == [(True, True), (False, False), (True, True), before]


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (RuntimeError("The NVIDIA driver on your system is too old (found version 11040). Please update"), r"too old .*; update NVIDIA's driver, or install a torch built for an older CUDA, or set `device: cpu`$"),
        (RuntimeError("Unexpected error from cudaGetDeviceCount(). Error 304: OS call failed\nmore lines"), r"^the GPU does not start: .* Error 304: OS call failed; the sandbox or the machine refuses .* `wall: weak`"),
        (RuntimeError("CUDA-capable device(s) is/are busy"), r"; `nvidia-smi` shows its state, or set `device: cpu`$"),
        (AssertionError("Torch not compiled with CUDA enabled"), r"Torch not compiled with CUDA enabled; "),
    ],
)  # fmt: skip
def test_a_gpu_that_does_not_start_is_one_line(monkeypatch, raised, words) -> None:
    def zeros(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr(torch, "zeros", zeros)
    torch_setup.start(torch.device("cpu"))
    with pytest.raises(BenchmarkError, match=words):
        torch_setup.start(torch.device("cuda"))


@pytest.mark.usefixtures("two_gpus")
def test_gpus_of_a_stage_are_counted(monkeypatch) -> None:
    for train, evaluate, counts in (("cpu", "cuda", (0, 1)), ("cuda", "cpu", (2, 0)), ("cuda:1", "cuda:0", (1, 1))):
        run = {"train": {"device": train, "processes": 3}, "evaluate": {"device": evaluate}}
        monkeypatch.setattr(run_settings, "run_settings", lambda run=run: RunSettings.model_validate(run))
        assert (run_settings.gpus_of("train"), run_settings.gpus_of("certify")) == counts
        assert run_settings.gpus_of("collect") == 0


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("device", "words"),
    [("cuda:2", "asks for device cuda:2, but torch finds 2; the first is cuda:0"), ("gpu", "unknown device 'gpu'")],
)
def test_a_device_that_is_not_there_is_refused(device, words) -> None:
    with pytest.raises(BenchmarkError, match=words):
        torch_setup.set_up(device)


def test_fabric_looks_for_no_cluster(monkeypatch) -> None:
    """Where mpi4py is installed, looking starts MPI, which ends a sandboxed process that may start no daemon."""

    def detect() -> bool:
        raise AssertionError("it looked")

    monkeypatch.setattr("lightning_fabric.plugins.environments.MPIEnvironment.detect", detect)
    assert fabric_of(TrainRun()).device == torch.device("cpu")
