"""The three splits of a track, from its source: fixed by seed and pinned by sha256."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
from sklearn.model_selection import train_test_split

from benchmark.data.images import SPLITS, Images, save_split
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.specs.data import DataSpec

SOURCES = Path("benchmark/data")
NO_SOURCES = {"__init__", "images", "prepare", "corruptions", "tensors"}


def prepare(spec: DataSpec, folder: Path) -> dict[str, str]:
    """Read and split the source, compare it with the pinned hashes and write the splits to `folder`.

    Returns:
        The sha256 of each split.

    Raises:
        BenchmarkError: an unknown source, a missing or corrupt file, a wrong shape or label, or a hash that differs from
            the track's (both are shown).
    """
    splits = split(spec, read(spec))
    digests = {name: images.digest() for name, images in splits.items()}
    for pinned_name, pinned in spec.sha256.items():
        if digests[pinned_name] != pinned:
            where = f"the files in {spec.path}" if spec.path else "the source files"
            raise BenchmarkError(
                f"{spec.source} data: the {pinned_name} split has sha256 {digests[pinned_name]}, the track pins {pinned}; "
                f"{where} differ from the track's: put the right ones there, or make a new track version"
            )
    for name, images in splits.items():
        save_split(folder, name, images)
    info = {"sha256": digests, "levels": splits["train"].levels, "counts": {n: len(i) for n, i in splits.items()}}
    files.write_json(folder / "data.json", info)
    return digests


def read(spec: DataSpec) -> dict[str, Images]:
    """Return the pools of the source: "all", or its own "train" and "test"."""
    if not (SOURCES / f"{spec.source}.py").exists() or spec.source in NO_SOURCES:
        sources = {path.stem for path in SOURCES.glob("*.py")} - NO_SOURCES
        raise BenchmarkError(f"unknown data source {spec.source!r}{near_miss(spec.source, sources)}")
    pools: dict[str, Images] = importlib.import_module(f"benchmark.data.{spec.source}").read(spec)
    for name, images in pools.items():
        if images.pixels.shape[1:] != tuple(spec.shape):
            shape = "x".join(map(str, images.pixels.shape[1:]))
            raise BenchmarkError(f"{spec.source} data: {name} images are {shape}, the track says {spec.shape}")
        if len(images) and not (images.labels.min() >= 0 and images.labels.max() < spec.classes):
            raise BenchmarkError(f"{spec.source} data: a {name} label lies outside 0..{spec.classes - 1}")
    check_counts(spec, {name: images.labels for name, images in pools.items()})
    return pools


def check_counts(spec: DataSpec, labels: dict[str, np.ndarray]) -> None:
    """Raise a BenchmarkError unless each pool, given by its labels, has as many images as `spec.images` says."""
    for name, expected in spec.images.items():
        by_class = np.bincount(labels.get(name, []), minlength=spec.classes).tolist()
        count = sum(by_class) if isinstance(expected, int) else tuple(by_class)
        if count != expected:
            wrong = f"{count} {name} images, the data set has {expected}"
            raise BenchmarkError(f"{spec.path or spec.source}: {wrong}; put the data set's own files there")


def split(spec: DataSpec, pools: dict[str, Images]) -> dict[str, Images]:
    """Return the three splits, stratified by label and fixed by `spec.seed`; validation is held out of training images."""
    if "all" in pools:
        if spec.test is None:
            raise BenchmarkError(f"{spec.source} data has no test split of its own; give the track `data.test`")
        train, test = _hold_out(pools["all"], spec.test, spec.seed)
    else:
        train, test = pools["train"], pools["test"]
    train, validation = _hold_out(train, spec.validation, spec.seed)
    return dict(zip(SPLITS, (train, validation, test), strict=True))


def _hold_out(images: Images, count: int, seed: int) -> tuple[Images, Images]:
    if count >= len(images):
        raise BenchmarkError(f"cannot hold {count} images out of {len(images)}; lower the track's split sizes")
    try:
        rest, held_out = train_test_split(np.arange(len(images)), test_size=count, stratify=images.labels, random_state=seed)
    except ValueError as error:
        raise BenchmarkError(f"cannot hold {count} images out of {len(images)} by class: {error}") from None
    return images.take(np.sort(rest)), images.take(np.sort(held_out))
