"""The usual public archives as torchvision reads them: CIFAR-10, CIFAR-100, SVHN, MNIST. Nothing is downloaded.

`spec.dataset` names one of them; `spec.path` is the folder that torchvision calls `root`. torchvision checks the
archives' published MD5 sums itself, before it reads them.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmark.data.images import Images
from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.specs.data import DataSpec

if TYPE_CHECKING:
    import torch

DATASETS = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "svhn": "SVHN", "mnist": "MNIST"}


def read(spec: DataSpec) -> dict[str, Images]:
    """
    Raises:
        BenchmarkError: unknown data set, or an archive that is missing, incomplete or does not match its checksum.
    """
    from torchvision import datasets

    if spec.dataset not in DATASETS:
        raise BenchmarkError(f"unknown torchvision data set {spec.dataset!r}{near_miss(str(spec.dataset), DATASETS)}")
    root = Path(spec.path or "data")
    make = getattr(datasets, DATASETS[spec.dataset])
    try:
        if spec.dataset == "svhn":
            parts = {name: make(root, split=name) for name in ("train", "test")}
        else:
            parts = {name: make(root, train=name == "train") for name in ("train", "test")}
    except (RuntimeError, OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise BenchmarkError(
            f"{spec.dataset} archive in {root}: {' '.join(str(error).split())}; put torchvision's files there"
        ) from None
    labels = {name: part.labels if spec.dataset == "svhn" else part.targets for name, part in parts.items()}
    return {
        name: Images(_channels_first(part.data), np.asarray(labels[name], dtype=np.int64))
        for name, part in parts.items()
    }


def _channels_first(data: np.ndarray | torch.Tensor) -> np.ndarray:
    """(n, c, h, w) uint8 from what torchvision holds: CIFAR (n, h, w, c), SVHN (n, c, h, w), MNIST (n, h, w)."""
    pixels = np.asarray(data)
    if pixels.ndim == 3:
        return pixels[:, None]
    return pixels if pixels.shape[1] in (1, 3) else np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
