"""BCP's network is the CNN of CertViT's table, to the unit."""

from __future__ import annotations

from benchmark.loading.methods import method
from benchmark.specs.data import DataSpec

build = method("Lee2020BCP").build


def data(channels: int, side: int) -> DataSpec:
    return DataSpec(source="digits", shape=(channels, side, side), classes=10, validation=1, test=1)


def test_the_papers_sizes_have_its_parameter_counts() -> None:
    assert sum(p.numel() for p in build(data(1, 28), activation="relu").parameters()) == 1_973_536
    assert sum(p.numel() for p in build(data(3, 32), activation="clipped_relu").parameters()) == 2_528_096
