"""A sandboxed model is the model: bit-identical logits and gradients, and the same refusals."""

from __future__ import annotations

import gc
import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny_linear_row import METHOD, NAMES, OWN_CLASS

from benchmark.attacks.engine.fused_ops import FusedOps
from benchmark.attacks.gradients import usable_gradients
from benchmark.attacks.internals import internals
from benchmark.layers.trained import trained_model
from benchmark.runtime.errors import BenchmarkError
from benchmark.sandbox.model import SandboxedModel, evaluated_model
from benchmark.sandbox.submitted import in_force
from benchmark.specs import methods
from benchmark.specs.rows import load_row

CPU = torch.device("cpu")
ODD = """
import torch
from torch import nn


def build(data):
    return Odd()


class Odd(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))

    def forward(self, x):
        {}
"""


@pytest.fixture
def row(linear_row):
    return load_row(*NAMES)


@pytest.fixture
def sandboxed(row):
    """Make a row's model, with another forward, in the sandbox."""
    made: list[SandboxedModel] = []

    def make(forward: str = "", row=row) -> SandboxedModel:
        if forward:
            Path("submissions/Tiny2026Linear/method.py").write_text(ODD.format(forward))
        made.append(SandboxedModel(row, CPU, in_force()))
        made[-1].build()
        return made[-1]

    yield make
    for model in made:
        model.close()


def images(n: int = 9) -> torch.Tensor:
    return torch.rand(n, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def test_logits_and_gradients_are_the_models_own_to_the_bit(row, sandboxed) -> None:
    own, other, weight = trained_model(row, CPU), sandboxed(), torch.linspace(-1, 1, 10)
    found = []
    for model in (own, other):
        x = images().requires_grad_()
        logits = model(x.clone())
        first = torch.autograd.grad((logits * weight).sum(), x, retain_graph=True)[0]
        second = torch.autograd.grad(logits.logsumexp(1).sum(), x)[0]  # the same pass, gone back through again
        with pytest.raises(RuntimeError, match="through the graph a second time"):
            torch.autograd.grad(logits.sum(), x)  # nobody asked to keep the pass
        with torch.no_grad():
            plain = model(images(3))
        found.append((logits.detach(), first, second, plain))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert internals(other, images()) == internals(own, images())


def test_a_pass_is_forgotten_with_its_logits(sandboxed) -> None:
    """The process keeps a graph for each pass that can still be gone back through, and no other."""
    model = sandboxed()
    kept = [model(images().requires_grad_()) for _ in range(3)]
    assert not model.released
    del kept
    gc.collect()
    assert sorted(model.released) == [0, 1, 2]
    model(images())
    assert not model.released


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        ("return super().forward(x.detach())", "its logits do not depend on the image by any gradient"),
        ("return super().forward(torch.tensor(x.numpy()))", "RuntimeError: Can't call numpy() on Tensor that requires grad"),
        ("return super().forward(torch.zeros_like(x)) + 0 * self[1].weight.sum()", "do not depend on the image"),
    ],
)  # fmt: skip
def test_a_model_without_gradients_has_none_here_either(sandboxed, forward, words) -> None:
    usable, problem = usable_gradients(sandboxed(forward), images(), torch.zeros(9, dtype=torch.long))
    assert not usable.any()
    assert words in problem


def test_a_gradient_that_is_nothing_everywhere_is_none(sandboxed) -> None:
    """Its logits have a gradient, but not by the images."""
    code = "w = self[1].weight.clone().requires_grad_(); return super().forward(x.detach()) + 0 * w.sum()"
    x = images().requires_grad_()
    assert torch.autograd.grad(sandboxed(code)(x).sum(), x, allow_unused=True)[0] is None


def test_an_open_model_draws_by_this_processs_generator(row, sandboxed) -> None:
    opened = row.submission.model_copy(update={"division": "open"})
    model = sandboxed("return super().forward(x) + torch.randn(len(x), 10)", replace(row, submission=opened))
    passes = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        passes.append((model(images()), model(images())))
    assert all(torch.equal(a, b) for a, b in zip(passes[0], passes[1], strict=True))
    assert not torch.equal(passes[0][0], passes[0][1])
    assert not torch.equal(passes[0][0], passes[2][0])


def test_the_faster_operations_are_taken_on_the_other_side(sandboxed) -> None:
    code = "q = x.flatten(2).mT.unflatten(1, (16, 4)).flatten(2); "
    code += "return super().forward(x) + torch.nn.functional.scaled_dot_product_attention(q, q, q).sum((1, 2))[:, None]"
    model, ops = sandboxed(code), FusedOps()
    model(images())
    assert not ops.used
    with ops:
        model(images())
    assert ops.used


def test_what_is_evaluated_is_sandboxed_and_ends_with_the_block(row) -> None:
    Path("submissions/Tiny2026Linear/method.py").write_text(OWN_CLASS)
    with evaluated_model(row, CPU) as evaluated:
        assert isinstance(evaluated.model, SandboxedModel)
        assert evaluated.claimed is None
        assert evaluated.wall == "landlock, seccomp, namespaces, limits"
        evaluated.model(images())
    with pytest.raises(BenchmarkError, match="the process that runs its code failed: it ended"):
        evaluated.model(images())
    Path("params.yaml").write_text("wall: none\n")
    with evaluated_model(row, CPU) as evaluated:
        assert (type(evaluated.model).__name__, evaluated.wall) == ("Own", "none")


def test_a_machine_without_a_part_of_the_sandbox_is_refused_or_named(row, monkeypatch) -> None:
    monkeypatch.setattr("benchmark.sandbox.confinement.available", lambda: ("seccomp", "limits"))
    with pytest.raises(BenchmarkError, match=r"no landlock, .* set `wall: weak` in params\.yaml"):
        in_force()
    Path("params.yaml").write_text("wall: weak\n")
    with evaluated_model(row, CPU) as evaluated:
        assert evaluated.wall == "seccomp, limits"
        evaluated.model(images())


@pytest.mark.parametrize("certificate", [None, {"name": "local"}])
def test_known_layers_are_evaluated_on_a_network_rebuilt_here(row, certificate) -> None:
    row = replace(row, settings=row.settings.model_copy(update={"certificate": certificate}))
    with evaluated_model(row, CPU) as evaluated:
        assert [type(layer).__name__ for layer in evaluated.model] == ["Flatten", "Linear"]
        assert not any(type(layer).__module__.startswith("submissions") for layer in evaluated.model.modules())
        evaluated.confirm(images(), 4, row.name)
    hooked = METHOD.replace("    return nn", "    model = nn")
    # on images of black and white alone, unlike those by which a network without a certificate is compared
    hooked += "    whole = lambda x: bool((x == x.round()).all())\n"
    hooked += "    model.register_forward_hook(lambda m, a, y: y * (1 + whole(a[0]) * 2**-22))\n    return model\n"
    Path("submissions/Tiny2026Linear/method.py").write_text(hooked)
    with (
        evaluated_model(row, CPU) as evaluated,
        pytest.raises(BenchmarkError, match=r"its logits differ for image 0 by .* from those of the network rebuilt"),
    ):
        evaluated.confirm(images().round(), 4, row.name)


def test_known_layers_that_are_random_or_answer_otherwise_stay_in_the_sandbox_unless_they_are_certified(row) -> None:
    opened = row.submission.model_copy(update={"division": "open"})
    with evaluated_model(replace(row, submission=opened), CPU) as evaluated:
        assert isinstance(evaluated.model, SandboxedModel)
    hooked = METHOD.replace("    return nn", "    model = nn")
    hooked += "    model.register_forward_hook(lambda m, a, y: y * (1 + 2**-22))\n    return model\n"
    Path("submissions/Tiny2026Linear/method.py").write_text(hooked)
    with evaluated_model(row, CPU) as evaluated:
        assert isinstance(evaluated.model, SandboxedModel)
    row = replace(row, settings=row.settings.model_copy(update={"certificate": {"name": "local"}}))
    with evaluated_model(row, CPU) as evaluated:
        assert evaluated.claimed is not None
        with pytest.raises(BenchmarkError, match="its logits differ for image 0"):
            evaluated.confirm(images(), 4, row.name)


SIZES = "img_size=8, patch_size=4, in_chans=1, num_classes=10, embed_dim=8, depth=1, num_heads=2, act_layer={}"
VIT = f"from torch import nn\nfrom benchmark.layers.vit import timm_vit\n\n\ndef build(data):\n    return timm_vit({SIZES})\n"


def test_timms_networks_are_rebuilt_where_they_answer_alike_and_are_not_certified(row) -> None:
    for activation, asked in (("None", False), ("nn.ReLU", True)):
        Path("submissions/Tiny2026Linear/method.py").write_text(VIT.format(activation))
        model = methods.build_model(row.submission, row.settings, row.track).eval()
        save_file(model.state_dict(), row.weights)
        with evaluated_model(row, CPU) as evaluated:
            assert isinstance(evaluated.model, SandboxedModel) is asked
            assert torch.equal(evaluated.model(images()), model(images()))
    row = replace(row, settings=row.settings.model_copy(update={"certificate": {"name": "local"}}))
    with pytest.raises(BenchmarkError, match="the layer VisionTransformer is none"), evaluated_model(row, CPU):
        pass


def test_a_question_leaves_both_processes_on_one_core_and_the_caller_free(row, monkeypatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    cores = os.sched_getaffinity(0)
    with closing(SandboxedModel(row, CPU, in_force())) as model:
        model.build()
        assert os.sched_getaffinity(0) == cores
        assert len(os.sched_getaffinity(model._process.pid)) == 1


def test_files_of_the_evaluators_garbage_close_none_of_the_sandboxs_files(sandboxed, request) -> None:
    request.addfinalizer(gc.enable)
    gc.disable()  # the garbage lasts until the fork
    garbage = [Path("params.yaml").open() for _ in range(5)]  # noqa: SIM115
    garbage.append(garbage)
    del garbage
    code = "import gc, os; own = [os.open(os.devnull, 0) for _ in range(99)]; gc.collect(); [*map(os.close, own)]; "
    assert sandboxed(code + "return super().forward(x)")(images()).shape == (9, 10)


def test_a_machine_that_refuses_cores_is_asked_all_the_same(row, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    with evaluated_model(row, CPU) as evaluated:
        assert evaluated.claimed is not None


def test_a_model_is_tried_with_its_trained_weights(row) -> None:
    save_file({"1.weight": torch.full((10, 64), torch.nan), "1.bias": torch.zeros(10)}, row.weights)
    with pytest.raises(BenchmarkError, match="the model's logits are not finite"):
        trained_model(row, CPU)
