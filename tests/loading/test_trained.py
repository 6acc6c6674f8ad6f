"""Weights to start from: what is taken over, what is new, what is refused."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from benchmark.loading.trained import start_from
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError


def net(classes: int = 3, width: int = 4) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, width), nn.Linear(width, classes))


def test_all_but_the_new_parts_are_taken_over(tmp_path) -> None:
    source, model = net(classes=3), net(classes=5)
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    head = model[2].weight.clone()
    assert start_from(model, tmp_path / "w.safetensors", ("2",)) == files.sha256_file(tmp_path / "w.safetensors")
    assert torch.equal(model[1].weight, source[1].weight)
    assert torch.equal(model[1].bias, source[1].bias)
    assert torch.equal(model[2].weight, head)


@pytest.mark.parametrize(
    ("model", "new", "words"),
    [
        (net(5), (), r"2\.bias is shape \(3,\) in .* and shape \(5,\) in this model; name it in `new`"),
        (net(5), ("3",), "the model has no part '3'"),
        (net(3, 6), ("2",), r"1\.bias is shape \(4,\)"),
        (net(3)[:2], (), r"2\.bias is shape \(3,\) in .* and nothing in this model"),
        (nn.Sequential(*net(3), nn.Linear(3, 3)), (), r"3\.bias is nothing in .* and shape \(3,\)"),
        (net(5), ("2.weight",), r"2\.bias is shape"),
    ],
)
def test_what_does_not_fit_is_refused_not_skipped(tmp_path, model, new, words) -> None:
    save_file(net(3).state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(BenchmarkError, match=words):
        start_from(model, tmp_path / "w.safetensors", new)
