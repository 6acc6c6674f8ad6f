"""Reader of torchvision's folders of Caltech-101 and Oxford Flowers-102. It downloads nothing.

`spec.dataset` names the data set; `spec.path` is torchvision's `root`. Caltech-101 has no test split: give the track
`data.test`. Flowers-102's training and validation images (1,020 each) are one pool, of which the track holds out its own
validation images; torchvision checks the published MD5 sums of its labels and splits.

Images are scaled and cropped around their centres to the track's shape (bilinear). Radii refer to that shape.
"""

from __future__ import annotations

from pathlib import Path

from benchmark.data.image_folder import load
from benchmark.data.images import Images
from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.specs.data import DataSpec

FOLDERS = {"caltech101": "caltech101/101_ObjectCategories", "flowers102": "flowers-102/jpg"}
Pools = dict[str, tuple[list[Path], list[int]]]  # image files and their labels


def read(spec: DataSpec) -> dict[str, Images]:
    """Return the pool "all" (Caltech-101), or "train" and "test" (Flowers-102).

    Raises:
        BenchmarkError: an unknown data set, a missing folder, labels that differ from their checksum, or an image that is
            missing or does not open (with its sha256).
    """
    if spec.dataset not in FOLDERS:
        raise BenchmarkError(f"unknown torchvision data set {spec.dataset!r}{near_miss(str(spec.dataset), FOLDERS)}")
    root = Path(spec.path or "data")
    folder = root / FOLDERS[spec.dataset]
    if not folder.is_dir():
        raise BenchmarkError(f"{spec.dataset} images {folder} are missing; unpack torchvision's archive under {root}")
    try:
        pools = _caltech101(root, folder) if spec.dataset == "caltech101" else _flowers102(root)
    except (RuntimeError, OSError, KeyError, ValueError) as error:
        raise BenchmarkError(
            f"{spec.dataset} in {root}: {' '.join(str(error).split())}; put torchvision's files there"
        ) from None
    for paths, _ in pools.values():
        if missing := next((path for path in paths if not path.exists()), None):
            raise BenchmarkError(f"{missing} is missing; unpack {spec.dataset}'s archive again")
    return {name: load(*pool, spec) for name, pool in pools.items()}


def _caltech101(root: Path, folder: Path) -> Pools:
    """Return the 101 classes sorted by name, without the clutter of BACKGROUND_Google."""
    from torchvision.datasets import Caltech101

    data = Caltech101(root)
    paths = [folder / data.categories[y] / f"image_{i:04d}.jpg" for i, y in zip(data.index, data.y, strict=True)]
    return {"all": (paths, data.y)}


def _flowers102(root: Path) -> Pools:
    from torchvision.datasets import Flowers102

    train, validation, test = (Flowers102(root, split=split) for split in ("train", "val", "test"))
    merged = (train._image_files + validation._image_files, train._labels + validation._labels)
    return {"train": merged, "test": (test._image_files, test._labels)}
