"""An image folder: <path>/train/<class>/<image> and <path>/test (or val)/<class>/<image>; classes sorted by name, or by
number where all names are numbers. Folders within a class's (TinyImageNet's train/<class>/images) are its own too; hidden
ones are none.

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

MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr")  # PIL's, of 8 bits a channel or fewer
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
        found = [entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith((".", "__"))]
        classes[name] = sorted(found, key=int if all(one.isdecimal() for one in found) else str)
    if classes["train"] != classes["test"]:
        odd = sorted(set(classes["train"]) ^ set(classes["test"]))
        raise BenchmarkError(f"image folder {root}: class {odd[0]!r} stands in only one of train and test")
    return {name: _read_split(folder, classes[name], spec) for name, folder in folders.items()}


def _read_split(folder: Path, classes: list[str], spec: DataSpec) -> Images:
    found = []
    for label, name in enumerate(classes):
        paths = [path for path in sorted((folder / name).rglob("*")) if path.suffix.lower() in SUFFIXES]
        if not paths:
            raise BenchmarkError(f"image folder {folder / name} holds no image ({', '.join(sorted(SUFFIXES))})")
        found += [(path, label) for path in paths]
    if not found:
        raise BenchmarkError(f"image folder {folder} holds no folder of a class")
    pixels = np.stack([opened(path, spec.shape) for path, _ in found])
    return Images(pixels, np.array([label for _, label in found], dtype=np.int64))


def opened(path: Path, shape: tuple[int, int, int]) -> np.ndarray:
    """(c, h, w) uint8 of an image file; a BenchmarkError where it does not open (its sha256 is shown)."""
    try:
        with Image.open(path) as image:
            return to_pixels(image, shape)
    except BenchmarkError as error:
        raise BenchmarkError(f"{path}: {error}") from None
    except (UnidentifiedImageError, OSError) as error:
        digest = files.sha256_file(path)
        raise BenchmarkError(f"{path} does not open as an image (sha256 {digest}): {error}") from None


def to_pixels(image: Image.Image, shape: tuple[int, int, int]) -> np.ndarray:
    """(c, h, w) uint8 of a PIL image."""
    channels, height, width = shape
    if image.mode not in MODES:
        raise BenchmarkError(f"it has pixels of kind {image.mode}, which is not 8 bits a channel; convert it to 8 bits")
    if "A" in image.getbands() and np.asarray(image.getchannel("A")).min() < 255:
        raise BenchmarkError("it is partly transparent; put it on a background")
    image = image.convert("L" if channels == 1 else "RGB")
    if image.size != (width, height):
        image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    array = np.asarray(image, dtype=np.uint8)
    return array[None] if channels == 1 else np.ascontiguousarray(array.transpose(2, 0, 1))
