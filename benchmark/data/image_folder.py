"""An image folder: <path>/train/<class>/<image> and <path>/test (or val)/<class>/<image>; classes sorted by name. Folders
within a class's (TinyImageNet's train/<class>/images) are its own too.

An image of another size is scaled and cropped around its centre to the track's shape (bilinear): the track's native
resolution is that shape, and radii refer to it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from benchmark.data.images import Images
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.data import DataSpec

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm"}


def read(spec: DataSpec) -> dict[str, Images]:
    """
    Raises:
        BenchmarkError: no such folder, no image in it, classes that differ between splits, an image that does not open
            (its sha256 is shown).
    """
    root = Path(spec.path or "data")
    test = root / "test" if (root / "test").is_dir() else root / "val"
    folders = {"train": root / "train", "test": test}
    classes = {}
    for name, folder in folders.items():
        if not folder.is_dir():
            raise BenchmarkError(f"image folder {folder} is missing; expected {root}/train and {root}/test (or val)")
        classes[name] = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    if classes["train"] != classes["test"]:
        odd = sorted(set(classes["train"]) ^ set(classes["test"]))
        raise BenchmarkError(f"image folder {root}: class {odd[0]!r} stands in only one of train and test")
    return {name: _read_split(folder, classes[name], spec) for name, folder in folders.items()}


def _read_split(folder: Path, classes: list[str], spec: DataSpec) -> Images:
    found = [
        (path, label)
        for label, name in enumerate(classes)
        for path in sorted((folder / name).rglob("*"))
        if path.suffix.lower() in SUFFIXES
    ]
    if not found:
        raise BenchmarkError(f"image folder {folder} holds no image ({', '.join(sorted(SUFFIXES))})")
    pixels = np.stack([opened(path, spec.shape) for path, _ in found])
    return Images(pixels, np.array([label for _, label in found], dtype=np.int64))


def opened(path: Path, shape: tuple[int, int, int]) -> np.ndarray:
    """(c, h, w) uint8 of an image file; a BenchmarkError where it does not open (its sha256 is shown)."""
    try:
        with Image.open(path) as image:
            return to_pixels(image, shape)
    except (UnidentifiedImageError, OSError) as error:
        digest = files.sha256_file(path)
        raise BenchmarkError(f"{path} does not open as an image (sha256 {digest}): {error}") from None


def to_pixels(image: Image.Image, shape: tuple[int, int, int]) -> np.ndarray:
    """(c, h, w) uint8 of a PIL image."""
    channels, height, width = shape
    image = image.convert("L" if channels == 1 else "RGB")
    if image.size != (width, height):
        image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    array = np.asarray(image, dtype=np.uint8)
    return array[None] if channels == 1 else np.ascontiguousarray(array.transpose(2, 0, 1))
