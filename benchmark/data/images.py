"""Labelled images as whole numbers, so that their hash is the same on every machine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.data import EvaluationSpec

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Images:
    """Pixels (n, channels, height, width) uint8 with values 0..`levels`, and labels (n,) int64."""

    pixels: np.ndarray
    labels: np.ndarray
    levels: int = 255

    def __post_init__(self) -> None:
        if self.pixels.dtype != np.uint8 or self.pixels.ndim != 4 or self.labels.shape != self.pixels.shape[:1]:
            raise ValueError(f"pixels {self.pixels.dtype} {self.pixels.shape} do not fit labels {self.labels.shape}")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: np.ndarray) -> Images:
        return Images(self.pixels[index], self.labels[index], self.levels)

    def floats(self) -> np.ndarray:
        """Return the pixels in [0, 1] as float32: pixel / levels, rounded once."""
        return self.pixels.astype(np.float32) / np.float32(self.levels)

    def digest(self) -> str:
        """Return the sha256 of shape, levels, pixels and labels."""
        head = json.dumps([list(self.pixels.shape), self.levels]).encode()
        labels = self.labels.astype("<i8").tobytes()
        return files.sha256_bytes(head + np.ascontiguousarray(self.pixels).tobytes() + labels)


def save_split(folder: Path, split: str, images: Images) -> None:
    tensors = {"pixels": np.ascontiguousarray(images.pixels), "labels": images.labels.astype(np.int64)}
    files.write(folder / f"{split}.safetensors", save(tensors, {"levels": str(images.levels)}))


def load_split(folder: Path, split: str) -> Images:
    """Return one prepared split after comparing it with the hash in data.json.

    Raises:
        BenchmarkError: the file is missing, damaged or not the one that was prepared; both sha256 are shown.
    """
    path = folder / f"{split}.safetensors"
    expected = files.read_json(folder / "data.json")
    if not path.exists():
        raise BenchmarkError(f"{path} is missing; run `rvb repro` to prepare the data again")
    try:
        tensors = load_file(path)
        images = Images(tensors["pixels"], tensors["labels"], expected["levels"])
    except (SafetensorError, KeyError, ValueError):
        raise BenchmarkError(
            f"{path} is damaged (sha256 of the file {files.sha256_file(path)}); delete {folder} and run `rvb repro`"
        ) from None
    if images.digest() != expected["sha256"][split]:
        raise BenchmarkError(
            f"{path} changed since it was prepared: sha256 {images.digest()}, expected {expected['sha256'][split]}; "
            f"delete {folder} and run `rvb repro`"
        )
    return images


def evaluation_split(folder: Path, rules: EvaluationSpec) -> Images:
    """Return the prepared test images of the evaluation set."""
    test = load_split(folder, "test")
    return test.take(evaluation_index(len(test), rules.images, rules.seed))


def evaluation_index(n: int, count: int, seed: int) -> np.ndarray:
    """Return the sorted indices of the `count` of `n` test images on which every model is evaluated: a seeded shuffle."""
    if count > n:
        raise BenchmarkError(f"{count} evaluation images are asked for, but the test split has {n}")
    return np.sort(np.random.default_rng(seed).permutation(n)[:count])
