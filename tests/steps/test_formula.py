"""Published formulas that are no bounds: shown beside a row, counted nowhere."""

from __future__ import annotations

import pytest
import tiny_linear_row
import torch
from stages import run_stage
from tiny_project import append, edit
from torch import nn

from benchmark.certificates.unsound_paper_formula import FORMULAS, unsound_radius
from benchmark.layers.clipped_relu import ClippedReLU
from benchmark.runtime.errors import BenchmarkError


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3, padding=1, bias=False), ClippedReLU((4, 8, 8)), nn.Conv2d(4, 4, 4, 2, 1, bias=False)]
    return nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(64, 10, bias=False)).requires_grad_(False)


def test_every_formula_reads_a_cnn_and_the_released_one_counts_convolutions_from_below() -> None:
    images = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    model = network()
    labels = model(images).argmax(1)
    found = {name: unsound_radius(name, model, images, labels).value for name in FORMULAS}
    assert all((value > 0).all() for value in found.values())
    convolutions = nn.Sequential(*model[:4], nn.Flatten())
    printed, released = (unsound_radius(name, convolutions, images, labels * 0).value for name in FORMULAS)
    right = printed > 0
    assert (released[right] >= printed[right]).all(), "a lower bound of a norm promises larger radii"


def test_unknown_formulas_and_layers_are_refused() -> None:
    images, labels = torch.rand(1, 1, 8, 8), torch.zeros(1, dtype=torch.long)
    with pytest.raises(BenchmarkError, match="no published formula 'certvti'; did you mean 'certvit'"):
        unsound_radius("certvti", network(), images, labels)
    with pytest.raises(BenchmarkError, match="does not know the layer Sigmoid"):
        unsound_radius("certvit", nn.Sequential(nn.Flatten(), nn.Sigmoid()), images, labels)
    with pytest.raises(BenchmarkError, match=r"plain nn\.Sequential"):
        unsound_radius("certvit", nn.Linear(2, 2), images, labels)


@pytest.mark.slow
def test_a_record_shows_a_formula_and_counts_nothing_of_it(linear_row) -> None:
    append("submissions/Tiny2026Linear/submission.yaml", "        unsound_formulas: [certvit, certvit_released]\n")
    edit("benchmark/tracks/tiny.yaml", "certified_radii: []", "certified_radii: [0.01, 0.1]")
    for name in ("attack-papers", "formula", "reliability", "collect"):
        run_stage(name, *tiny_linear_row.NAMES)
    record = tiny_linear_row.record()
    assert record.certified == ()
    assert record.certificate is None
    shown = record.measured["unsound"]
    assert {*shown} == {"certvit", "certvit_released"}
    assert {*shown["certvit"]["reached"]} == {"0.01", "0.1"}
    assert 0 < shown["certvit"]["reached"]["0.01"] <= record.clean.value
