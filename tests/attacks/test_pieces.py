"""A model of which memory holds few images at a time gives the logits, gradients and verdicts that it gives whole."""

from __future__ import annotations

import re

import pytest
import torch
from searched import few
from tiny_models import Through
from torch import nn

from benchmark.attacks.engine import square
from benchmark.attacks.internals import flops, internals
from benchmark.attacks.pieces import InPieces, fitting, room
from benchmark.attacks.prediction import MIN_ROWS, logits
from benchmark.evaluation.auto_attack import auto_attack
from benchmark.evaluation.certified_radii import certified_radii
from benchmark.runtime.errors import BenchmarkError, OutOfMemory
from benchmark.runtime.memory import halved
from benchmark.sandbox.confinement import Confinement, available
from benchmark.sandbox.process import Process, serve
from benchmark.specs.threat import CertificateSpec

IMAGES = torch.rand(64, 3, 4, 4, generator=torch.Generator().manual_seed(1))


class Small(nn.Module):
    """A network on a device that holds `most` images in a forward pass, and `most_back` of them in a backward pass."""

    def __init__(self, most: int = 1000, most_back: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.Tanh(), nn.Linear(16, 5))
        self.most, self.most_back, self.asked = most, most_back or most, list[int]()
        self.eval()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.asked.append(len(images))
        if len(images) > (self.most_back if images.requires_grad else self.most):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return self.network(images)


def pixels(**options) -> nn.Module:
    """Five pixels as logits."""
    return Through(nn.Flatten(), **{"after": lambda z, x: z[:, :5]} | options).eval()


def gradient(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    leaf = images.clone().requires_grad_()
    return torch.autograd.grad((model(leaf) * torch.arange(5.0)).sum(), leaf)[0]


def test_pieces_are_found_by_halving_until_forward_and_backward_fit() -> None:
    messages: list[str] = []
    model = Small(most=64, most_back=20)
    assert fitting(model, IMAGES[:16], messages.append) is model
    pieces = fitting(model, IMAGES, messages.append)
    assert isinstance(pieces, InPieces)
    assert pieces.most == 16
    assert messages == ["memory holds a pass of 16 images, not of 64: the model is asked in pieces"]
    assert room(pieces, IMAGES[:32]) == 32, "in pieces it has no more room"
    with pytest.raises(BenchmarkError, match=rf"out of memory with {MIN_ROWS} images of 3x4x4 in a pass"):
        fitting(Small(most=3), IMAGES[:32])
    with pytest.raises(AttributeError, match="nothing"):
        fitting(pixels(before=lambda images: images.nothing), IMAGES[:16])


def test_logits_gradients_and_internals_are_those_of_the_whole() -> None:
    images, whole, pieces = IMAGES[:37], Small(), fitting(Small(most=20), IMAGES[:37])
    torch.testing.assert_close(pieces(images), whole(images), rtol=0, atol=1e-6)
    torch.testing.assert_close(gradient(pieces, images), gradient(whole, images), rtol=0, atol=1e-6)
    assert max(pieces.model.asked[3:]) <= 20  # but for the trials of 37 and 18
    assert internals(pieces, images) == internals(whole, images)
    assert flops(whole, images)[0] == internals(pieces, images).flops == 2 * (48 * 16 + 16 * 5)


def test_the_backward_pass_draws_the_numbers_of_the_forward_pass_and_no_others() -> None:
    """Logits are multiples of pixels by drawn numbers, which a gradient shows."""
    images, model = IMAGES[:20], InPieces(pixels(after=lambda z, x: z[:, :5] * torch.randn(len(x), 5)), 8)
    torch.manual_seed(3)
    leaf = images.clone().requires_grad_()
    output = model(leaf)
    state = torch.get_rng_state()
    slope = torch.autograd.grad(output.sum(), leaf)[0].flatten(1)[:, :5]
    torch.testing.assert_close(slope * images.flatten(1)[:, :5], output)
    assert torch.equal(state, torch.get_rng_state())


def test_a_missing_gradient_is_missing_in_pieces_and_a_model_of_two_faces_is_refused() -> None:
    leaf = IMAGES[:16].clone().requires_grad_()
    detached, faces = pixels(before=torch.Tensor.detach), pixels(after=lambda z, x: z[:, :5] * (-1) ** x.requires_grad)
    assert torch.autograd.grad(InPieces(detached, 8)(leaf).sum(), leaf, allow_unused=True)[0] is None
    with pytest.raises(BenchmarkError, match="other logits where their gradient is asked for"):
        torch.autograd.grad(InPieces(faces, 8)(leaf).sum(), leaf)


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "eps"), few([("Linf", 0.1)], [("L2", 0.4)]))
def test_autoattack_has_the_same_verdicts_in_pieces(norm, eps, monkeypatch) -> None:
    monkeypatch.setattr(square, "QUERIES", 100)
    images, whole = IMAGES[:16], Small()
    labels = whole(images).argmax(1)
    expected = auto_attack(whole, images, labels, norm=norm, eps=eps)
    assert 0 < expected.robust.sum() < 16
    assert torch.equal(auto_attack(InPieces(Small(8), 8), images, labels, norm=norm, eps=eps).robust, expected.robust)


def test_predictions_and_certificates_halve_what_does_not_fit(monkeypatch) -> None:
    images, model, spec = IMAGES[:50], Small(most=13), CertificateSpec(name="lipschitz")
    with torch.no_grad():
        torch.testing.assert_close(logits(model, images, 50), Small()(images), rtol=0, atol=1e-6)
    asked: list[int] = []

    class Certificate:
        @staticmethod
        def certify(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            asked.append(len(x))
            if len(x) > 13:
                raise OutOfMemory("a process says so")
            return y.double()

    monkeypatch.setattr("benchmark.evaluation.certified_radii.certificate_module", lambda _: Certificate)
    assert certified_radii(model, images, torch.arange(50), spec, 25).tolist() == [*range(50)]
    assert asked == [25, 13, 12, 25, 13, 12]
    assert certified_radii(model, images[:0], torch.zeros(0).long(), spec, 5).shape == (0,)
    assert logits(model, images[:0], 5).shape == (0, 5)


class _Served:
    def zeros(self, numbers: int) -> tuple[dict, dict]:
        torch.zeros(numbers)
        return {}, {}


def test_a_sandboxed_process_that_lacks_memory_reports_it_and_lives_on() -> None:
    rules = Confinement(available(), memory=2**31)
    with Process(lambda channel: serve(channel, _Served()), rules, owner="a test", seconds=60) as process:
        with pytest.raises(OutOfMemory, match="can't allocate memory"):
            process.ask("zeros", numbers=2**31)
        assert process.ask("zeros", numbers=8) == ({}, {})


@pytest.mark.parametrize("words", ["[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried", "shapes differ"])
def test_halves_end_at_the_least_and_other_errors_go_on(words) -> None:
    def never(rows: slice) -> torch.Tensor:
        raise RuntimeError(words)

    with pytest.raises(RuntimeError, match=re.escape(words)):
        halved(never, slice(0, 9), 2)


@pytest.mark.parametrize(("holds", "most", "expected"), [(40, 4096, 32), (1000, 100, 64), (8, 4096, 8)])
def test_a_gpu_is_asked_about_as_many_images_as_its_memory_holds(holds, most, expected) -> None:
    model = Small(most=2000, most_back=holds)
    assert room(model, IMAGES[:8], most) == expected
    assert max(model.asked) <= max(2 * holds, most)
