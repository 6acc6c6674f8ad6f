"""Reader of image folders: <path>/train/<class>/<image> and <path>/test (or val)/<class>/<image>.

Classes are sorted by name, or by number if all names are numbers. Subfolders belong to their class (TinyImageNet's
train/<class>/images). Hidden files and folders are skipped, and so is text beside the images; other files are refused.

Images of another size are scaled and cropped around their centre to the track's shape (bilinear). Radii refer to that shape.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image, ImageOps, UnidentifiedImageError

from benchmark.data.images import Images
from benchmark.data.prepare import check_counts
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.data import DataSpec

MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr")  # PIL's modes of at most 8 bits a channel
SUFFIXES = {".png", ".jpg", ".jpeg", ".jfif", ".bmp", ".webp", ".ppm", ".pgm"}
UNREAD = {".tif", ".tiff", ".gif", ".heic", ".avif", ".jp2", ".npy"}  # image formats that are refused
BESIDE = {".txt", ".csv", ".xml", ".json", ".md", ".db", ".ini"}  # what may lie beside images
Crop = Callable[[Image.Image, tuple[int, int]], Image.Image]  # of an image and the (width, height) that it gets


def read(spec: DataSpec) -> dict[str, Images]:
    """Return the pools "train" and "test".

    Raises:
        BenchmarkError: a missing, empty or ambiguous folder, or an image that does not open (with its sha256).
    """
    root = Path(spec.path or "data")
    if spec.test:
        raise BenchmarkError(f"{root}: image folders have splits train and test (or val) of their own; remove `data.test`")
    test = root / "test" if (root / "test").is_dir() else root / "val"
    folders = {"train": root / "train", "test": test}
    classes, others = (classes_in(folder) for folder in folders.values())
    if odd := {*classes} ^ {*others}:
        both = test.name == "test" and (root / "val").is_dir()
        advice = "; test and val are both there: remove test if val has the labelled images" if both else ""
        raise BenchmarkError(f"image folder {root}: class {min(odd)!r} is in only one of train and {test.name}{advice}")
    if len(classes) != spec.classes:  # a missing folder would shift the labels of all later ones
        raise BenchmarkError(f"{root} has folders of {len(classes)} classes, the track says {spec.classes}")
    paths = {name: [images_in(folder / label, classes) for label in classes] for name, folder in folders.items()}
    labels = {name: np.repeat(range(len(classes)), [*map(len, by_class)]) for name, by_class in paths.items()}
    check_counts(spec, labels)  # before pixels are read
    return {name: load([path for of_class in paths[name] for path in of_class], labels[name], spec) for name in folders}


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "__")) for part in path.parts)


def classes_in(folder: Path) -> list[str]:
    """Return the names of the class folders, in the order of their labels."""
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    if stray := next((path for path in entries if path.suffix.lower() in SUFFIXES | UNREAD), None):
        raise BenchmarkError(f"{stray} is in no class folder; move it into one")
    names = [entry.name for entry in entries if entry.is_dir() and not _hidden(Path(entry.name))]
    if not names:
        raise BenchmarkError(f"{folder} is missing or has no class folder; put a folder of images a class there")
    return sorted(names, key=int if all(name.isdecimal() for name in names) else str)


def images_in(folder: Path, classes: Sequence[str]) -> list[Path]:
    """Return the image files of one class, sorted."""
    visible = [path for path in sorted(folder.rglob("*")) if not _hidden(path.relative_to(folder.parent))]
    for path in (folder, *visible):  # a folder comes before its files
        image = path.suffix.lower() in SUFFIXES
        if not os.access(path, os.R_OK | os.X_OK * path.is_dir()):
            raise BenchmarkError(f"{path} cannot be read; let this user read it, or put the data set's own file there")
        if path != folder and path.is_dir() and (path.is_symlink() or image or path.name in classes):
            raise BenchmarkError(f"{path} in a class is a link or a folder named as a class or an image; move it out")
        if not (image or path.is_dir() or path.suffix.lower() in BESIDE):
            raise BenchmarkError(f"{path} is a file of a kind that is not read; convert it to PNG or remove it")
    paths = [path for path in visible if path.suffix.lower() in SUFFIXES]
    if not paths:
        raise BenchmarkError(f"image folder {folder} holds no image ({', '.join(sorted(SUFFIXES))})")
    return paths


def load(paths: Sequence[Path], labels: ArrayLike, spec: DataSpec, crop: Crop | None = None) -> Images:
    """Return the images of these files in the track's shape."""
    pixels = np.empty((len(paths), *spec.shape), np.uint8)  # filled in place: at 224 pixels it takes gigabytes
    for i, path in enumerate(paths):
        pixels[i] = opened(path, spec, str(path), path, crop)
    return Images(pixels, np.asarray(labels, dtype=np.int64))


def opened(source: Path | BinaryIO, spec: DataSpec, name: str, file: Path, crop: Crop | None = None) -> np.ndarray:
    """Return an image as (c, h, w) uint8.

    Raises:
        BenchmarkError: it does not open or is not of 8 bits a channel; with the sha256 of `file`, which contains it.
    """
    try:
        with Image.open(source) as image:
            return _pixels(image, spec.shape, crop)
    except BenchmarkError as error:
        raise BenchmarkError(f"{name}: {error}") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = "its format is not known" if isinstance(error, UnidentifiedImageError) else error
        raise BenchmarkError(
            f"{name} does not open as an image (sha256 {files.sha256_file(file)}): {reason}; "
            "replace it with the data set's own file"
        ) from None


def _pixels(image: Image.Image, shape: tuple[int, int, int], crop: Crop | None) -> np.ndarray:
    channels, height, width = shape
    if image.mode not in MODES or ";16B" in str(getattr(image, "tile", "")):  # a PNG of 16 bits has the mode RGB
        raise BenchmarkError(f"its pixel format {image.mode} is not 8 bits a channel; convert it to 8 bits")
    if image.has_transparency_data and np.asarray(image.convert("RGBA").getchannel("A")).min() < 255:
        raise BenchmarkError("it is partly transparent; put it on a background")
    image = image.convert("L" if channels == 1 else "RGB")
    image = crop(image, (width, height)) if crop else ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    array = np.asarray(image, dtype=np.uint8)
    return array[None] if channels == 1 else np.ascontiguousarray(array.transpose(2, 0, 1))
