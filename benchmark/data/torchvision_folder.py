"""Data sets of single image files as torchvision lays them out: Caltech-101 and Oxford Flowers-102. Nothing is downloaded.

`spec.dataset` names one; `spec.path` is the folder that torchvision calls `root`. Caltech-101 has no split of its own:
give the track `data.test`. Of Flowers-102 the training and validation images (1,020 each) are one pool, from which the track
holds out its own validation images; torchvision checks the published MD5 sums of its labels and splits.

Images are scaled and cropped around their centres to the track's shape (bilinear): radii refer to that shape.
"""

from __future__ import annotations

from pathlib import Path

from benchmark.data.image_folder import load
from benchmark.data.images import Images
from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.specs.data import DataSpec

FOLDERS = {"caltech101": "caltech101/101_ObjectCategories", "flowers102": "flowers-102/jpg"}


def read(spec: DataSpec) -> dict[str, Images]:
    """
    Raises:
        BenchmarkError: unknown data set, a missing folder, labels that do not match their checksum, or an image that is
            missing or does not open (its sha256 is shown).
    """
    if spec.dataset not in FOLDERS:
        raise BenchmarkError(f"unknown torchvision data set {spec.dataset!r}{near_miss(str(spec.dataset), FOLDERS)}")
    root = Path(spec.path or "data")
    place = root / FOLDERS[spec.dataset]
    if not place.is_dir():
        raise BenchmarkError(f"{spec.dataset} images {place} are missing; unpack torchvision's archive under {root}")
    try:
        pools = _caltech101(root) if spec.dataset == "caltech101" else _flowers102(root)
    except (RuntimeError, OSError, KeyError, ValueError) as error:
        words = " ".join(str(error).split())
        raise BenchmarkError(f"{spec.dataset} in {root}: {words}; put torchvision's files there") from None
    for paths, _ in pools.values():
        if missing := next((path for path in paths if not path.exists()), None):
            raise BenchmarkError(f"{missing} is missing; unpack {spec.dataset}'s archive again")
    return {name: load(*pool, spec) for name, pool in pools.items()}


def _caltech101(root: Path) -> dict[str, tuple[list[Path], list[int]]]:
    """101 classes by name; the clutter of BACKGROUND_Google is none."""
    from torchvision.datasets import Caltech101

    found = Caltech101(root)
    place = root / FOLDERS["caltech101"]
    paths = [place / found.categories[y] / f"image_{i:04d}.jpg" for i, y in zip(found.index, found.y, strict=True)]
    return {"all": (paths, found.y)}


def _flowers102(root: Path) -> dict[str, tuple[list[Path], list[int]]]:
    from torchvision.datasets import Flowers102

    parts = {split: Flowers102(root, split=split) for split in ("train", "val", "test")}
    held = {split: (part._image_files, part._labels) for split, part in parts.items()}
    train = (held["train"][0] + held["val"][0], held["train"][1] + held["val"][1])
    return {"train": train, "test": held["test"]}
