"""Attention and patch embedding by plain products during a search: the same function, in this thread alone, no verdict by rounding."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
import torch
from tiny_attacked import assert_same_rows, assert_slots_and_company_change_no_bit
from tiny_models import Through, grey_images
from torch import nn
from torch.nn import functional

from benchmark.attacks import autoattack
from benchmark.attacks.engine import square
from benchmark.attacks.engine.fused_ops import FEW, FusedOps
from benchmark.attacks.engine.slots import Search
from benchmark.runtime import arithmetic
from benchmark.specs.threat import ThreatModel

FUSED, CONVOLUTION = functional.scaled_dot_product_attention, functional.conv2d


def attend(*parts: torch.Tensor, **options) -> torch.Tensor:
    return functional.scaled_dot_product_attention(*parts, **options)  # looked up at each call


def heads(tokens: int = 6, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    stream = torch.Generator().manual_seed(3)
    return [torch.randn(2, 3, tokens, 4, generator=stream).to(dtype).requires_grad_() for _ in range(3)]


# Two float32 sums of up to 24 products of size 1, in any order: each may be off by 24 times 2^-24 of its terms' sum.
ROUNDING = {"rtol": 1e-5, "atol": 1e-5}


def one_block() -> nn.Module:
    """Attention between the rows of 6x6 images, then a linear layer."""
    torch.manual_seed(0)
    parts, head = nn.Linear(6, 18), nn.Linear(36, 5)

    def attend(z: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        query, key, value = z.split(6, dim=-1)
        return head(functional.scaled_dot_product_attention(query, key, value).flatten(1))

    return Through(parts, lambda x: 4 * x, attend).eval()


def assert_same_function(call, given: list[torch.Tensor], **gradients: float) -> None:
    fused = FusedOps()
    with fused:
        ours = call(*given)
    assert fused.used
    theirs = call(*given)
    torch.testing.assert_close(ours, theirs, **ROUNDING)
    weights = torch.arange(ours.numel()).view_as(ours) / ours.numel()
    slopes = (torch.autograd.grad((values * weights).sum(), given) for values in (ours, theirs))
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other, **gradients)


def test_values_and_gradients_are_those_of_the_fused_kernel() -> None:
    assert_same_function(attend, heads(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("patch", [(2, 2), (4, 2)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_patch_embedding_is_the_convolution(patch, bias) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 5, patch, stride=patch, bias=bias)
    assert_same_function(layer, [torch.rand(2, 3, 8, 8, requires_grad=True)], **ROUNDING)


OTHER_CONVOLUTIONS = [{"stride": 1}, {"padding": 2}, {"dilation": 2}, {"groups": 3}, {"stride": 3}]  # 3 does not tile 8
OTHER_ATTENTION = [
    (FEW + 1, torch.float32, {}),
    (5, torch.float32, {}),  # 75 weights an image
    (6, torch.float64, {}),
    (6, torch.float32, {"is_causal": True}),
    (6, torch.float32, {"scale": 1.0}),
    (6, torch.float32, {"attn_mask": torch.eye(6)}),
]


def test_other_calls_go_to_torchs_own_kernels() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 6, o.get("stride", 2) // 3 + 2, **{"stride": 2} | o) for o in OTHER_CONVOLUTIONS]
    calls = [partial(layer, torch.rand(2, 3, 8, 8)) for layer in layers]
    for tokens, dtype, options in OTHER_ATTENTION:
        calls.append(partial(attend, *heads(tokens, dtype), **options))
    for call in calls:
        fused = FusedOps()
        with fused, torch.no_grad():
            result = call()
        assert not fused.used, call
        assert torch.equal(result, call())


@pytest.mark.parametrize(("tokens", "count", "width"), [(17, 2, 8), (13, 3, 4)])
def test_the_place_in_the_batch_changes_no_bit_of_attention(tokens, count, width) -> None:
    """The libraries' rounding goes by a matrix's address modulo 16 bytes: 17 tokens in 2 heads showed it in half the places."""
    parts = torch.randn(24, tokens, 3 * count * width, generator=torch.Generator().manual_seed(5))

    def call(x: torch.Tensor) -> torch.Tensor:
        query, key, value = x.unflatten(2, (3, count, width)).permute(2, 0, 3, 1, 4)
        return attend(query, key, value).transpose(1, 2).flatten(2)

    assert_no_bit_by_place(call, parts)


@pytest.mark.parametrize(("channels", "patch"), [(1, 3), (3, 2)])
def test_the_place_in_the_batch_changes_no_bit_of_a_patch_embedding(channels, patch) -> None:
    stream = torch.Generator().manual_seed(5)
    images, weight = (torch.randn(n, channels, k * patch, k * patch, generator=stream) for n, k in ((24, 3), (8, 1)))
    assert_no_bit_by_place(lambda x: functional.conv2d(x, weight, torch.ones(8), patch), images)


def assert_no_bit_by_place(call, points: torch.Tensor) -> None:
    """Another order and another number of images: the same values and gradients for each."""

    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        leaf = x.clone().requires_grad_()
        with FusedOps():
            output = call(leaf)
        weights = torch.linspace(-1, 1, output[0].numel()).view_as(output[0])
        return output.detach(), torch.autograd.grad((output * weights).sum(), leaf)[0]

    values, slopes = both(points)
    for n in (24, 17, 9):
        some = torch.randperm(24, generator=torch.Generator().manual_seed(n))[:n]
        again = both(points[some])
        assert_same_rows(again[0], values[some])
        assert_same_rows(again[1], slopes[some])


def test_another_thread_keeps_the_fused_kernel_and_torch_is_left_as_it_was() -> None:
    results = []
    with FusedOps():
        thread = threading.Thread(target=lambda: results.append(attend(*heads())))
        thread.start()
        thread.join()
        with FusedOps():
            pass
        assert functional.scaled_dot_product_attention is not FUSED
    assert functional.scaled_dot_product_attention is FUSED
    assert functional.conv2d is CONVOLUTION
    assert torch.equal(results[0], attend(*heads()))


def test_what_only_rounding_breaks_is_not_recorded(monkeypatch) -> None:
    """A replacement that is far off: the points that it alone calls wrong do not count, and the search goes on."""
    monkeypatch.setattr(square, "QUERIES", 300)
    model, images = one_block(), grey_images(8)
    labels = model(images).argmax(1)
    monkeypatch.setattr("benchmark.attacks.engine.fused_ops.attention", lambda q, k, v: 100 * torch.sin(50 * (q + k + v)))
    threat = ThreatModel(norm="Linf", eps=1e-4)  # too small for any image
    for component in ("apgd-ce", "square"):
        result = autoattack.attack(model, images, labels, threat, seed=0, component=component)
        assert torch.equal(result, images), component


def test_a_search_asks_the_model_itself_about_what_it_finds() -> None:
    model, images = one_block(), grey_images(8)
    labels = model(images).argmax(1)
    search = Search(model, images, labels, list(range(8)), "Linf", 0.3, 0, 8)
    assert not torch.equal(search.logits(images), search.own_logits(images))
    assert torch.equal(search.own_logits(images), model(images))
    state = {"image": torch.arange(8), "target": torch.zeros(8).long(), "point": images, "label": (labels + 1) % 5}
    state["label"][:2] = labels[:2]
    assert search.record(state, torch.ones(8, dtype=torch.bool)).tolist() == [False] * 2 + [True] * 6
    assert search.broken.tolist() == [False] * 2 + [True] * 6


@pytest.mark.sweep
@pytest.mark.parametrize(("norm", "eps"), [("Linf", 0.1), ("L2", 0.5)])
def test_slots_and_company_change_no_bit_for_a_model_with_attention(norm, eps) -> None:
    assert_slots_and_company_change_no_bit(one_block(), grey_images(8), ThreatModel(norm=norm, eps=eps))


FILES = ("test_class_token.py", "test_quicker.py", "test_search.py")


@pytest.mark.slow
@pytest.mark.long
def test_an_image_is_treated_alike_wherever_it_stands_to_the_bit_in_native_arithmetic() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in arithmetic.VARIABLES}
    files = [str(Path(__file__).with_name(name)) for name in FILES]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *files]
    result = subprocess.run(command, capture_output=True, text=True, env={**environment, "TEST_ARITHMETIC": "native"})
    assert result.returncode == 0, result.stdout
