"""Reader of torchvision's archives of CIFAR-10, CIFAR-100, SVHN and MNIST. It downloads nothing.

`spec.dataset` names the data set; `spec.path` is torchvision's `root`. torchvision checks the published MD5 sums of all
but MNIST's files; a track of MNIST gives the number of images of each class (`data.images`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmark.data.images import Images
from benchmark.runtime.errors import BenchmarkError, near_miss, said
from benchmark.specs.data import DataSpec

if TYPE_CHECKING:
    import torch

DATASETS = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "svhn": "SVHN", "mnist": "MNIST"}
DATA = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python", "svhn": "*.mat", "mnist": "MNIST/raw/*-ubyte"}


def read(spec: DataSpec) -> dict[str, Images]:
    """Return the pools "train" and "test".

    Raises:
        BenchmarkError: an unknown data set, or files that are missing, incomplete or differ from their checksum.
    """
    from torchvision import datasets

    if spec.dataset not in DATASETS:
        raise BenchmarkError(f"unknown torchvision data set {spec.dataset!r}{near_miss(str(spec.dataset), DATASETS)}")
    root, svhn, place = Path(spec.path or "data"), spec.dataset == "svhn", DATA[spec.dataset]
    pools = {}
    for name in ("train", "test"):
        options = {"split": name} if svhn else {"train": name == "train"}
        try:
            part = getattr(datasets, DATASETS[spec.dataset])(root, **options)
            labels = np.asarray(part.labels if svhn else part.targets, dtype=np.int64)
            pools[name] = Images(_channels_first(part.data), labels)
        except Exception as error:  # torchvision raises many kinds on wrong files
            wrong = f"incomplete or wrong ({said(error).partition(' You can use')[0].removesuffix(': ')})"
            raise BenchmarkError(
                f"{spec.dataset}: {root / place} is {wrong if any(root.glob(place)) else 'missing'}; put unpacked files there"
            ) from None
    return pools


def _channels_first(data: np.ndarray | torch.Tensor) -> np.ndarray:
    """Return (n, c, h, w) uint8 from torchvision's CIFAR (n, h, w, c), SVHN (n, c, h, w) or MNIST (n, h, w)."""
    pixels = np.asarray(data)
    if pixels.ndim == 3:
        return pixels[:, None]
    return pixels if pixels.shape[1] in (1, 3) else np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
