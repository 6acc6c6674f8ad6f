"""Convolutions over tokens: their output, and the norm of bounded ones for any parameters."""

from __future__ import annotations

import pytest
import torch
from ball_search import jacobian_norm
from searched import few
from tiny_layers import draw
from torch import nn

from benchmark.layers.token_convolution import BoundedTokenConvolution, TokenConvolution


@pytest.mark.parametrize(("kernels", "tokens"), [((3,), 7), ((5, 5), 9), ((1, 3, 7), 4), ((7,), 1), ((9, 3), 2)])
def test_it_is_pytorch_s_convolution_of_each_slice(kernels, tokens) -> None:
    width = 4 * len(kernels)
    layer, x = TokenConvolution(width, kernels).double(), draw(3, tokens, width)
    parts = [
        nn.functional.conv1d(part.mT, layer_slice.weight, layer_slice.bias, padding=kernel // 2).mT
        for part, layer_slice, kernel in zip(x.chunk(len(kernels), dim=2), layer.slices, kernels, strict=True)
    ]
    assert torch.allclose(layer(x), torch.cat(parts, dim=2), rtol=1e-12, atol=1e-12)


def test_it_starts_as_pytorch_s_convolution_and_has_its_parameters() -> None:
    torch.manual_seed(0)
    ours, theirs = TokenConvolution(64, (3,)), nn.Conv1d(64, 64, 3)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
    for name in ("weight", "bias"):
        our, their = (getattr(layer, name).detach() for layer in (ours.slices[0], theirs))
        assert our.shape == their.shape
        assert float(our.abs().max()) == pytest.approx(float(their.abs().max()), rel=0.1)
        assert float(our.std()) == pytest.approx(float(their.std()), rel=0.25)


def rank_one(raw: torch.Tensor) -> torch.Tensor:
    return torch.einsum("o,i,t->oit", raw[:, 0, 0], raw[0, :, 0], torch.ones_like(raw[0, 0]))


def smooth(raw: torch.Tensor) -> torch.Tensor:
    """Taps that differ by a cosine alone: its largest block lies at a low frequency other than 0."""
    return torch.einsum("oi,t->oit", raw[:, :, 0], torch.cos(torch.pi / 9 * torch.arange(raw.shape[2])).to(raw))


ADVERSARIAL = {
    "random": lambda raw: raw,
    "large": lambda raw: 1e30 * raw,
    "tiny": lambda raw: 1e-30 * raw,
    "one entry": lambda raw: raw * (raw == raw.max()),
    "rank one": rank_one,
    "alternating": lambda raw: rank_one(raw) * (-1.0) ** torch.arange(raw.shape[2]),
    "smooth": smooth,
    "one large tap": lambda raw: torch.cat([raw[:, :, :1] * 1e6, raw[:, :, 1:]], dim=2),
    "orthogonal": lambda raw: torch.linalg.qr(raw[:, :, 0]).Q[:, :, None] * (torch.arange(raw.shape[2]) == 0),
    "zero": torch.zeros_like,
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", ADVERSARIAL)
@pytest.mark.parametrize(("kernels", "norm"), few([((3,), 0.25), ((7, 3), 30.0)], [((5, 1), 1.0)]))
def test_no_kernel_makes_the_norm_larger_than_promised(name, kernels, norm) -> None:
    """Of the float32 weights that act, on one token and on more; and not all is wasted on many tokens."""
    layer = BoundedTokenConvolution(6, kernels, norm=norm)
    for seed in range(2):
        for part in layer.slices:
            part.raw.data = ADVERSARIAL[name](draw(*part.raw.shape, seed=seed).float())
        weights = [part.weight.detach().double() for part in layer.slices]
        plain = TokenConvolution(6, kernels).double()
        for part, weight in zip(plain.slices, weights, strict=True):
            part.weight.data = weight
        for tokens in (1, 2, 5, 24):
            assert jacobian_norm(plain, draw(1, tokens, 6)) <= norm
        for weight in weights:
            blocks = torch.linalg.svdvals(torch.fft.fft(weight, n=999).permute(2, 0, 1))
            assert blocks.max() <= norm
            if name in ("orthogonal", "one entry"):  # kernels that waste nothing do not change
                assert blocks.max() >= (1 - 1e-5) * norm
            assert blocks.min() >= (1 - 1e-5) * norm or name != "orthogonal"
            assert blocks.max() >= 0.3 * norm or (name == "zero" and not weight.any())


def test_parameters_learn_zeros_pass_finite_gradients_and_kernels_that_are_not_finite_reach_the_output() -> None:
    """So training stops with its own message, and no weight is guessed."""
    layer, x = BoundedTokenConvolution(4, (3,)), draw(2, 5, 4).float()
    layer(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in layer.parameters())
    layer.zero_grad()
    layer.slices[0].raw.data.zero_()
    layer(x).sum().backward()
    assert layer.slices[0].raw.grad.isfinite().all()
    for value in (float("nan"), float("inf")):
        layer.slices[0].raw.data[0, 0, 0] = value
        assert layer(x).isnan().any()
