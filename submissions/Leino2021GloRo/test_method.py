"""GloRo's, BCP's and Local-Lip's network is the CNN of CertViT's table, to the unit."""

from __future__ import annotations

import pytest
import torch

from benchmark.specs.data import DataSpec
from benchmark.specs.methods import method

build = method("Leino2021GloRo").build


def data(channels: int, side: int) -> DataSpec:
    return DataSpec(source="digits", shape=(channels, side, side), classes=10, validation=1, test=1)


@pytest.mark.parametrize("name", ["Leino2021GloRo", "Lee2020BCP", "Huang2021LocalLip"])
def test_the_papers_sizes_have_its_parameter_counts(name) -> None:
    for images, activation, count in ((data(1, 28), "relu", 1_973_536), (data(3, 32), "clipped_relu", 2_528_096)):
        assert sum(p.numel() for p in method(name).build(images, activation=activation).parameters()) == count


def test_an_orthogonal_start_and_a_wrong_option() -> None:
    weight = build(data(1, 8), channels=4, hidden=8, orthogonal=True)[-1].weight.detach()
    assert torch.allclose(weight.mT @ weight, torch.eye(8), atol=1e-5)
    with pytest.raises(ValueError, match="activation 'gelu' is none of"):
        build(data(1, 8), activation="gelu")
