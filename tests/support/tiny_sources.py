"""Tiny data sets in their public layouts, as each reader of benchmark/data expects them."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from scipy.io import savemat
from scipy.ndimage import gaussian_filter
from torchvision import datasets

GREYS = (10, 60, 110, 160, 210, 250)  # a flat image survives JPEG and scaling


def encode(image: np.ndarray) -> dict:
    data = io.BytesIO()
    Image.fromarray(image.transpose(1, 2, 0)).save(data, "PNG")
    return {"bytes": data.getvalue(), "path": None}


def write_folder(root: Path, test: str = "test") -> None:
    for name in ("train", test):
        for first, label in ((0, "cat"), (3, "dog")):
            folder = root / name / label
            folder.mkdir(parents=True)
            for index in range(3):
                Image.fromarray(PIXELS[first + index].transpose(1, 2, 0)).save(folder / f"{index}.png")


def write_imagenet(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three classes of four images of other shapes, and a list of four of them in no order."""
    for number, pixels in enumerate(np.random.default_rng(1).integers(0, 256, (12, 280, 330, 3), dtype=np.uint8)):
        path = root / f"n{number // 4}/{number % 4}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels if number % 2 else pixels.transpose(1, 0, 2)).save(path, compress_level=0)
    (root / "ids.txt").write_text("n2/1.png\nn0/0.png\nn2/0.png\nn1/2.png")
    monkeypatch.setattr("benchmark.data.robustbench_imagenet.LIST", root / "ids.txt")


def write_parquet(path: Path, part: slice, image: str = "img", label: str = "label") -> None:
    pq.write_table(pa.table({image: [encode(i) for i in PIXELS[part]], label: LABELS[part]}), path)


def write_svhn(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {}
    for name, part in (("train", slice(0, 14)), ("test", slice(14, 20))):
        path = root / f"{name}_32x32.mat"
        labels = np.where(LABELS[part] == 0, 10, LABELS[part])[:, None]  # SVHN writes 10 for the digit 0
        savemat(path, {"X": PIXELS[part].transpose(2, 3, 1, 0), "y": labels})
        names[name] = ["", path.name, hashlib.md5(path.read_bytes()).hexdigest()]
    monkeypatch.setattr(datasets.SVHN, "split_list", names)


def write_mnist(root: Path) -> None:
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for prefix, count in (("train", 14), ("t10k", 6)):
        pixels = PIXELS[:count, 0, :28, :28]
        images = struct.pack(">IIII", 2051, count, 28, 28) + pixels.tobytes()
        labels = struct.pack(">II", 2049, count) + LABELS[:count].astype(np.uint8).tobytes()
        for name, data in ((f"{prefix}-images-idx3-ubyte", images), (f"{prefix}-labels-idx1-ubyte", labels)):
            (raw / name).write_bytes(data)
            (raw / f"{name}.gz").write_bytes(gzip.compress(data))


def write_sentences(root: Path, train: str, dev: str = "sentence\tlabel\nfine\t1\n") -> None:
    (root / "train.tsv").write_text(train)
    (root / "dev.tsv").write_text(dev)


def flat(path: Path, grey: int, size: tuple[int, int] = (30, 20)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (grey, grey, grey)).save(path, quality=95)


def write_caltech(root: Path) -> None:
    """As the archive unpacks: a folder a class, `image_0001.jpg` on, clutter beside them, one grey image among RGB ones."""
    home = root / "caltech101" / "101_ObjectCategories"
    for label, name in enumerate(("accordion", "Faces_easy", "zebra")):
        for i in range(2):
            flat(home / name / f"image_{i + 1:04d}.jpg", GREYS[2 * label + i])
    flat(home / "BACKGROUND_Google" / "image_0001.jpg", 0)
    Image.new("L", (20, 30), GREYS[0]).save(home / "accordion" / "image_0001.jpg")
    (root / "caltech101" / "Annotations").mkdir()


def write_flowers(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six numbered images, labels from 1, and the three splits, with torchvision's checksums set to these files'."""
    home = root / "flowers-102"
    for i, grey in enumerate(GREYS):
        flat(home / "jpg" / f"image_{i + 1:05d}.jpg", grey)
    savemat(home / "imagelabels.mat", {"labels": np.array([[1, 2, 3, 1, 2, 3]], np.uint8)})
    ids = {"trnid": [[2, 1]], "valid": [[3, 6]], "tstid": [[4, 5]]}
    savemat(home / "setid.mat", {name: np.array(value, np.uint16) for name, value in ids.items()})
    sums = {name: hashlib.md5((home / name).read_bytes()).hexdigest() for name in ("imagelabels.mat", "setid.mat")}
    known = {"label": ("imagelabels.mat", sums["imagelabels.mat"]), "setid": ("setid.mat", sums["setid.mat"])}
    monkeypatch.setattr(datasets.Flowers102, "_file_dict", known)


def textures(n: int, size: tuple[int, int] = (32, 32)) -> np.ndarray:
    """Smooth random images (n, 3, h, w) of 255ths, each from 0 to 1."""
    found = gaussian_filter(np.random.default_rng(0).random((n, 3, *size)), (0, 0, 2, 2))
    low, high = found.min((1, 2, 3), keepdims=True), found.max((1, 2, 3), keepdims=True)
    return (np.rint((found - low) / (high - low) * 255) / np.float32(255)).astype(np.float32)


PIXELS = np.random.default_rng(0).integers(0, 256, (20, 3, 32, 32), dtype=np.uint8)
LABELS = np.arange(20) % 10


def write_cifar(root: Path, monkeypatch: pytest.MonkeyPatch, kind: str, labels: np.ndarray = LABELS) -> None:
    """A tiny archive in the real layout, with torchvision's checksums set to its own."""
    ten = kind == "cifar10"
    base = root / ("cifar-10-batches-py" if ten else "cifar-100-python")
    base.mkdir(parents=True)

    def put(name: str, content: dict) -> list[str]:
        data = pickle.dumps(content)
        (base / name).write_bytes(data)
        return [name, hashlib.md5(data).hexdigest()]

    key = "labels" if ten else "fine_labels"
    flat = PIXELS.reshape(20, -1)
    train = [put("data_batch_1" if ten else "train", {"data": flat[:14], key: labels[:14].tolist()})]
    test = [put("test_batch" if ten else "test", {"data": flat[14:], key: labels[14:].tolist()})]
    names = "label_names" if ten else "fine_label_names"
    meta = put("batches.meta" if ten else "meta", {names: [str(i) for i in range(10)]})
    made = datasets.CIFAR10 if ten else datasets.CIFAR100
    monkeypatch.setattr(made, "train_list", train)
    monkeypatch.setattr(made, "test_list", test)
    monkeypatch.setattr(made, "meta", {"filename": meta[0], "key": names, "md5": meta[1]})
