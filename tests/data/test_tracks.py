"""The shipped tracks: each loads, and those of usual archives read files in their layout."""

from __future__ import annotations

import numpy as np
import pytest
import yaml
from PIL import Image
from tiny_sources import write_cifar, write_folder, write_svhn

from benchmark.data.prepare import read, split
from benchmark.specs import tracks
from benchmark.specs.threat import AttackSpec


def test_every_track_loads_with_its_radii() -> None:
    for name in tracks.names():
        assert tracks.load(name).suites
    cifar10 = tracks.load("cifar10")
    assert [threat.eps for threat in cifar10.threats] == [8 / 255, 0.5]
    assert cifar10.certified_radii[0] == 36 / 255
    spec = yaml.safe_load("{attack: pgd, norm: Linf, eps: 8/255}")
    assert AttackSpec.model_validate(spec).eps == 8 / 255
    for wrong in ("8/0", "8 by 255", "eight"):
        with pytest.raises(ValueError, match="eps"):
            AttackSpec.model_validate(spec | {"eps": wrong})


@pytest.mark.parametrize("name", ["cifar10", "svhn", "imagenette"])
def test_a_shipped_track_reads_its_archive(name, tmp_path, monkeypatch) -> None:
    if name == "cifar10":
        write_cifar(tmp_path, monkeypatch, "cifar10")
    elif name == "svhn":
        write_svhn(tmp_path, monkeypatch)
    else:
        write_folder(tmp_path)
        (tmp_path / "test").rename(tmp_path / "val")
    track = tracks.load(name)
    classes = 2 if name == "imagenette" else 10
    pools = read(track.data.model_copy(update={"path": str(tmp_path), "classes": classes}))
    assert len(pools["train"])
    assert len(pools["test"])
    assert pools["test"].pixels.shape[1:] == track.data.shape


def test_imagenets_validation_folder_alone_gives_the_splits_of_its_track(tmp_path) -> None:
    """Only as many images a class as the track needs are read, drawn by its seed."""
    for label in range(3):
        for number in range(9):
            path = tmp_path / f"n{label:08d}/{number}.png"
            path.parent.mkdir(exist_ok=True)
            Image.new("RGB", (40, 30), (label, number, 0)).save(path)
    data = tracks.load("imagenet").data.model_copy(
        update={"path": str(tmp_path), "classes": 3, "validation": 3, "test": 6, "shape": (3, 32, 32)}
    )
    pools = read(data)
    assert np.bincount(pools["all"].labels).tolist() == [4, 4, 4]
    assert (pools["all"].pixels[:, 0, 0, 0] == pools["all"].labels).all()
    parts = split(data, pools)
    assert {name: np.bincount(part.labels).tolist() for name, part in parts.items()} == {
        "train": [1, 1, 1], "validation": [1, 1, 1], "test": [2, 2, 2]
    }  # fmt: skip
    assert parts["test"].digest() == split(data, read(data))["test"].digest()
