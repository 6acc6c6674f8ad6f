"""Caltech-101 and Flowers-102 in their public layouts, with a few tiny images that the tests write."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny_sources import GREYS, write_caltech, write_flowers

from benchmark.data.prepare import read, split
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.data import DataSpec


def spec(dataset: str, root: Path, **changes) -> DataSpec:
    given = {"dataset": dataset, "path": str(root), "validation": 2, "shape": (3, 16, 16), "classes": 3}
    return DataSpec(**{"source": "torchvision_folder", **given, **changes})


def greys(images) -> list[int]:
    values = images.pixels.reshape(len(images), -1)
    assert (values.max(1).astype(int) - values.min(1) <= 2).all()
    return [min(GREYS, key=lambda g: abs(g - int(value))) for value in values[:, 0]]


def test_caltech101(tmp_path) -> None:
    write_caltech(tmp_path)
    pools = read(spec("caltech101", tmp_path))
    assert list(pools) == ["all"]
    assert pools["all"].pixels.shape == (6, 3, 16, 16)
    by_label = dict(zip(greys(pools["all"]), pools["all"].labels.tolist(), strict=True))
    # torchvision sorts names as bytes: Faces_easy, accordion, zebra; the clutter is no class
    assert by_label == {110: 0, 160: 0, 10: 1, 60: 1, 210: 2, 250: 2}
    with pytest.raises(BenchmarkError, match="test split"):
        split(spec("caltech101", tmp_path), pools)
    assert read(spec("caltech101", tmp_path, shape=(1, 8, 8)))["all"].pixels.shape == (6, 1, 8, 8)


def test_bad_caltech101(tmp_path) -> None:
    write_caltech(tmp_path)
    image = tmp_path / "caltech101/101_ObjectCategories/zebra/image_0002.jpg"
    image.write_bytes(b"no image")
    digest = hashlib.sha256(b"no image").hexdigest()
    with pytest.raises(BenchmarkError, match=rf"image_0002\.jpg .*{digest}"):
        read(spec("caltech101", tmp_path))
    image.rename(image.with_name("image_0009.jpg"))
    with pytest.raises(BenchmarkError, match=r"image_0002\.jpg is missing; unpack caltech101's archive again"):
        read(spec("caltech101", tmp_path))
    with pytest.raises(BenchmarkError, match="caltech101"):
        read(spec("caltech102", tmp_path))


def test_flowers102_and_its_refusals(tmp_path, monkeypatch) -> None:
    write_flowers(tmp_path, monkeypatch)
    pools = read(spec("flowers102", tmp_path))
    assert list(zip(greys(pools["train"]), pools["train"].labels.tolist(), strict=True)) == [
        (60, 1), (10, 0), (110, 2), (250, 2),
    ]  # fmt: skip
    assert list(zip(greys(pools["test"]), pools["test"].labels.tolist(), strict=True)) == [(160, 0), (210, 1)]
    (tmp_path / "flowers-102/jpg/image_00004.jpg").unlink()
    with pytest.raises(BenchmarkError, match=r"image_00004\.jpg is missing"):
        read(spec("flowers102", tmp_path))
    with (tmp_path / "flowers-102/setid.mat").open("ab") as file:
        file.write(b"!")
    with pytest.raises(BenchmarkError, match=r"flowers102 in .*not found or corrupted"):
        read(spec("flowers102", tmp_path))


def test_scaled_images_are_cropped_around_their_centre(tmp_path) -> None:
    write_caltech(tmp_path)
    path = tmp_path / "caltech101/101_ObjectCategories/zebra/image_0001.jpg"
    wide = np.zeros((16, 48, 3), np.uint8)
    wide[:, 16:32] = 200
    Image.fromarray(wide).save(path, quality=100)
    pools = read(spec("caltech101", tmp_path))
    (zebra,) = (p for p, y in zip(pools["all"].pixels[4:5], pools["all"].labels[4:5], strict=True) if y == 2)
    assert zebra.min() > 150
