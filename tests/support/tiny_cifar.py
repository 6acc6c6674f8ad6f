"""Tiny archives in CIFAR's real layout."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
from torchvision import datasets

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
