"""Training on a GPU, as far as a CPU can test it: mixed precision, captured steps, batches that do not fit."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import components
import pytest
import torch
from components import EVERY, built, recipe
from lightning_fabric import Fabric
from lightning_fabric.plugins.precision import Precision
from tiny_models import Through, attentive
from tiny_training import blobs, model, run, spec
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmark.layers.attention_weights import attention_weights
from benchmark.runtime.errors import BenchmarkError
from benchmark.training import capture, standard
from benchmark.training.capture import WARM, waits_among
from benchmark.training.objective import robust_accuracy
from benchmark.training.steps import Autocast, Steps, optimizer

IMAGES, LABELS = blobs(0, 16)


class Repeats:
    """A recorder for the CPU: it does not compute while it records, and repeats the recorded work on fixed memory."""

    def __init__(self) -> None:
        self.recorded, self.replayed, self.forgotten = 0, 0, 0

    def stream(self):
        return nullcontext()

    def generator(self) -> torch.Tensor:
        return torch.get_rng_state()

    def waits(self):
        return nullcontext([])

    def forget(self) -> None:
        self.forgotten += 1

    def record(self, work):
        self.recorded += 1
        result = torch.zeros((), dtype=torch.float64)

        def replay() -> None:
            self.replayed += 1
            result.copy_(work())

        return replay, result


class Refuses(Repeats):
    def record(self, work):
        error = RuntimeError("capture_end: the stream is not capturing")
        error.__context__ = RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")
        raise error  # as torch's own context does


class Waits(Repeats):
    def waits(self):
        return nullcontext(["called a synchronizing CUDA operation"])


def trained(tmp_path, name: str, recorder=None, network=None, **changes) -> dict[str, torch.Tensor]:
    options = {"recorder": recorder}
    return run(network or model(), standard.objective(None), spec(**changes), tmp_path / name, **options)[0]


def steps_of(network: nn.Module, objective, rules, precision: str = "32-true") -> Steps:
    return Steps(network, objective, rules, Fabric(accelerator="cpu", devices=1, precision=precision), IMAGES)


@pytest.fixture
def _uncompiled(monkeypatch) -> None:
    monkeypatch.setattr("benchmark.training.steps.compiled", lambda network: network)


@pytest.mark.parametrize(("objective", "attack"), EVERY)
def test_every_objective_takes_a_step_in_mixed_precision(objective, attack) -> None:
    rules = recipe(objective, attack)
    network, loss = built(rules)
    before = [p.detach().clone() for p in network.parameters()]
    steps = steps_of(network, loss, rules, "bf16-mixed")
    steps.learning.train()
    assert torch.isfinite(steps.step([(IMAGES, LABELS)], 16, 1.0))
    after = [*network.parameters()]
    assert {p.dtype for p in after} == {torch.float32}
    assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_an_attack_sees_the_rounding_of_mixed_precision_and_whole_images() -> None:
    rules, seen = recipe("adversarial", "fgsm"), []
    network, loss = built(rules)
    network.register_forward_hook(lambda _, given, logits: seen.append((given[0].dtype, logits.dtype)))
    steps = steps_of(network, loss, rules, "bf16-mixed")
    steps.step([(IMAGES, LABELS)], 16, 1.0)
    assert seen == [(torch.float32, torch.bfloat16)] * 2
    assert steps.learning(IMAGES).dtype == torch.float32


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("objective", "attack", "changes"),
    [*((*case, {}) for case in EVERY), (*EVERY[0], {"sam": 0.05, "clip_norm": 1.0, "keep_zeros": True})],
)
def test_a_step_neither_waits_for_the_device_nor_copies_to_it(objective, attack, changes) -> None:
    rules = recipe(objective, attack, optimizer="sgd", **changes)
    network, loss = built(rules)
    steps = Steps(network.to("meta"), loss, rules, MetaFabric(), IMAGES.to("meta"), recorder=Repeats())
    steps.captured.recording = True  # sam leaves the generators alone
    batch = [(IMAGES.to("meta"), LABELS.to("meta"))]
    if objective == "projected":  # singular values are looked at: such a step cannot be captured
        with pytest.raises(RuntimeError, match="waits for the device"), GraphSafe():
            steps.step(batch, 16, 1.0)
        return
    with GraphSafe():
        assert steps.step(batch, 16, 1.0).device.type == "meta"


@pytest.mark.parametrize(
    ("name", "factors"), [("msvp", {"lambda_q": 0.1, "lambda_v": 0.1}), ("spectral_norm", {"factor": 0.1})]
)
def test_penalties_neither_wait_for_the_device_nor_copy_to_it(name, factors) -> None:
    network = attentive()
    penalty = (
        components.module("training/penalties", name)
        .penalty(network, lambda: attention_weights(network), **factors)
        .to("meta")
    )
    network.to("meta")
    with GraphSafe():
        penalty.advance()
        penalty().backward()
    assert any(p.grad is not None for p in network.parameters())


@pytest.mark.sweep
@pytest.mark.usefixtures("_uncompiled")
@pytest.mark.parametrize("changes", [{}, {"sam": 0.05}, {"accumulation": 2}, {"ema": 0.9}])
def test_a_captured_run_is_the_run_that_is_not(tmp_path, changes) -> None:
    """120 images in batches of 16: seven whole ones and one of 8 an epoch. Without dropout, so that sam may be recorded."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 4))
    start = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    plain = trained(tmp_path, "plain", None, network, **changes)
    network.load_state_dict(start)
    recorder = Repeats()
    same = trained(tmp_path, "captured", recorder, network, **changes)
    assert all(torch.equal(plain[name], same[name]) for name in plain)
    assert recorder.recorded == 2
    steps = 6 * (4 if "accumulation" in changes else 8)
    assert recorder.replayed == steps - 2 * WARM


@pytest.mark.usefixtures("_uncompiled")
def test_another_radius_is_recorded_anew(tmp_path) -> None:
    rules = recipe("adversarial", "fgsm", epochs=4, warmup_epochs=2)
    network, loss = built(rules)
    recorder = Repeats()
    run(network, loss, rules, tmp_path / "c", recorder=recorder)
    # 16 of 120 images: seven whole batches, at radii 0, 1/2, 1, 1, and an odd one, which is seen thrice with the attack
    assert recorder.recorded == 3
    assert recorder.forgotten == 3
    assert recorder.replayed == 4 * 7 - 2 * WARM


@pytest.mark.usefixtures("_uncompiled")
def test_steps_without_the_attack_are_not_taken_for_steps_with_it(tmp_path, capsys) -> None:
    """At radius 0 nothing is drawn; SAM's two passes must draw the same starts all the same."""
    rules = recipe("adversarial", "fgsm", epochs=3, warmup_epochs=1, sam=0.05)
    network, loss = built(rules)
    network[3].p, recorder = 0.0, Repeats()
    run(network, loss, rules, tmp_path / "c", recorder=recorder)
    assert "sam repeats a step's random numbers" in capsys.readouterr().out
    assert recorder.recorded == 1  # at radius 0


@pytest.mark.usefixtures("_uncompiled")
def test_a_capture_that_fails_unforeseen_ends_the_training_in_one_line(tmp_path) -> None:
    words = (
        r"^params\.yaml, train: the step cannot be captured \(CUDA error: operation not permitted .*\); set `compile: false`"
    )
    with pytest.raises(BenchmarkError, match=words):
        trained(tmp_path, "captured", Refuses())


@pytest.mark.usefixtures("_uncompiled")
@pytest.mark.parametrize(
    ("recorder", "changes", "why"),
    [
        (Waits(), {}, "it waits for the device: called a synchronizing CUDA operation"),
        (Repeats(), {"sam": 0.05}, "sam repeats a step's random numbers"),
    ],
)
def test_a_step_that_cannot_be_captured_is_reported_once_and_runs_as_it_is(tmp_path, capsys, recorder, changes, why) -> None:
    plain = trained(tmp_path, "plain", **changes)
    same = trained(tmp_path, "captured", recorder, **changes)
    assert all(torch.equal(plain[name], same[name]) for name in plain)
    lines = [line for line in capsys.readouterr().out.splitlines() if "captured" in line]
    assert lines == [f"train.compile: the step is not captured ({why}); it runs as it is"]


def test_without_programs_nothing_is_compiled(monkeypatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError

    capture._starts_programs.cache_clear()
    network = model()
    monkeypatch.setattr("subprocess.run", refused)
    assert capture.compiled(network) is network
    monkeypatch.undo()
    capture._starts_programs.cache_clear()
    assert capture.compiled(network) is not network


def holding(most: int) -> nn.Module:
    def tight(images: torch.Tensor) -> None:
        if len(images) > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")

    torch.manual_seed(0)
    return Through(nn.Sequential(nn.Flatten(), nn.Linear(36, 4)), tight)


def test_a_batch_that_memory_does_not_hold_is_halved_and_reported(monkeypatch, capsys) -> None:
    rules, weights = spec(optimizer="sgd"), {}
    monkeypatch.setattr(Steps, "_on_gpu", property(lambda _: True))
    for most in (16, 5):
        steps = steps_of(holding(most), standard.objective(None), rules)
        loss = steps.step([(IMAGES, LABELS)], 16, 1.0)
        weights[most] = [loss, *(p.detach().clone() for p in steps.model.parameters())]
        assert steps.pieces == (1 if most == 16 else 4)
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(*weights.values(), strict=True))
    assert capsys.readouterr().out.splitlines() == [
        f"out of memory: gradients of batches of 16 are gathered from {size} images at a time" for size in (8, 4)
    ]
    darker = lambda network, x, y, eps_factor: x * (1 - 0.1 * (network(x).argmax(1) == y).float()[:, None, None, None])  # noqa: E731
    scored = [robust_accuracy(darker, holding(most), IMAGES, LABELS) for most in (16, 5)]
    assert scored[0] == scored[1], "scores take fewer images at a time too"
    with pytest.raises(BenchmarkError, match=r"^out of memory with one image of a batch of 16; use another GPU$"):
        steps_of(holding(0), standard.objective(None), rules).step([(IMAGES, LABELS)], 16, 1.0)


def test_a_wait_is_told_from_the_warning_that_torch_looks_for_waits() -> None:
    looks = "Synchronization debug mode is a prototype feature and does not yet detect all synchronizing operations"
    wait = "called a synchronizing CUDA operation (Triggered internally at CUDAFunctions.cpp:1.)"
    assert waits_among([looks, f"{wait}\nmore", "unrelated"]) == [wait]


def test_full_batches_alone_run_compiled() -> None:
    """The last batch of an epoch is of another size: compiling it too would take minutes."""
    sizes: dict[str, list[int]] = {"plain": [], "compiled": []}
    plain, compiled = (Through(nn.Flatten(), lambda x, n=name: sizes[n].append(len(x))) for name in sizes)
    learning = Autocast(plain, Fabric(accelerator="cpu", devices=1).strategy.precision, compiled, full=16)
    for size in (16, 16, 5):
        learning(torch.rand(size, 1, 6, 6))
    assert sizes == {"plain": [5], "compiled": [16, 16]}
    assert [*learning.children()] == [learning.module]


aten = torch.ops.aten
WAITS = {aten._linalg_check_errors.default, aten._linalg_svd.default, aten._linalg_eigh.default, aten.equal.default}
COPIES = {aten._to_copy.default, aten.copy_.default}


class Unsafe(RuntimeError):
    """An operation that a CUDA graph cannot hold, as torch says it on a GPU."""


class GraphSafe(TorchDispatchMode):
    """Raises `Unsafe` for operations that wait for `meta`, as for a GPU, or that copy to it from the processor."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in WAITS:
            raise Unsafe(f"{function} waits for the device")
        try:
            result = function(*args, **(kwargs or {}))
        except (RuntimeError, NotImplementedError) as error:
            raise Unsafe(f"{function}: {str(error).splitlines()[0]}") from None
        given = args[1] if function is aten.copy_.default else args[0] if args else None
        if function in COPIES and given.device.type == "cpu" and result.device.type == "meta":
            raise Unsafe("a tensor is copied from the processor")
        return result


class MetaFabric:
    """What `Steps` asks of Fabric, on a device that computes nothing."""

    device = torch.device("meta")
    strategy = SimpleNamespace(precision=Precision())

    def setup(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        return model, optimizer

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def clip_gradients(self, model: nn.Module, _: object, *, max_norm: float, error_if_nonfinite: bool) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), max_norm, error_if_nonfinite=error_if_nonfinite)


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
@pytest.mark.parametrize("decayed", ["all", "weights"])
def test_on_a_gpu_the_optimiser_is_fused_and_its_rate_lies_there(kind, decayed) -> None:
    rules = spec(optimizer=kind, weight_decay=0.1, weight_decay_on=decayed)
    made = optimizer(model(), rules, torch.device("cuda"), scaled=True)
    assert not any(group.get("fused") for group in made.param_groups)
    if torch.cuda.is_available():
        made = optimizer(model().cuda(), rules, torch.device("cuda"))
        assert all(group["fused"] and group["lr"].device.type == "cuda" for group in made.param_groups)
