"""Reader of image folders: <path>/train/<class>/<image> and <path>/test (or val)/<class>/<image>.

Classes are sorted by name, or by number if all names are numbers. Subfolders belong to their class (TinyImageNet's
train/<class>/images); hidden files and folders are skipped. If the track sets `data.test` and there are no such splits,
<path>/<class>/<image> is one pool, as ImageNet's validation images: only as many images a class as the track needs are
read, drawn by its seed.

Images of another size are scaled and cropped around their centre to the track's shape (bilinear). Radii refer to that shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image, ImageOps, UnidentifiedImageError

from benchmark.data.images import Images
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.data import DataSpec

MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr")  # PIL's modes of at most 8 bits a channel
SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm"}
UNREAD = {".tif", ".tiff", ".gif", ".heic", ".avif", ".jp2", ".npy"}  # image formats that are refused


def read(spec: DataSpec) -> dict[str, Images]:
    """Return the pools "train" and "test", or "all".

    Raises:
        BenchmarkError: a missing or empty folder, classes that differ between splits, or an image that does not open (with
            its sha256).
    """
    root = Path(spec.path or "data")
    test = root / "test" if (root / "test").is_dir() else root / "val"
    one_pool = spec.test and root.is_dir() and not (root / "train").is_dir() and not test.is_dir()
    folders = {"all": root} if one_pool else {"train": root / "train", "test": test}
    for folder in folders.values():
        if not folder.is_dir():
            raise BenchmarkError(f"image folder {folder} is missing; expected {root}/train and {root}/test (or val)")
    classes, *others = (_classes(folder) for folder in folders.values())
    if odd := {name for other in others for name in {*classes} ^ {*other}}:
        raise BenchmarkError(f"image folder {root}: class {min(odd)!r} is in only one of train and test")
    if len(classes) != spec.classes:  # a missing folder would shift the labels of all later ones
        raise BenchmarkError(
            f"image folder {root} has folders of {len(classes)} classes, the track says {spec.classes}"
        )
    pools = {}
    for name, folder in folders.items():
        paths = [_images(folder / label) for label in classes]
        if one_pool:
            paths = _chosen(paths, spec)
        labels = np.repeat(range(len(classes)), [len(of_class) for of_class in paths])
        pools[name] = load([path for of_class in paths for path in of_class], labels, spec)
    return pools


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "__")) for part in path.parts)


def _classes(folder: Path) -> list[str]:
    if stray := next((path for path in sorted(folder.iterdir()) if path.suffix.lower() in SUFFIXES | UNREAD), None):
        raise BenchmarkError(f"{stray} is in no class folder; move it into one")
    names = [entry.name for entry in folder.iterdir() if entry.is_dir() and not _hidden(Path(entry.name))]
    if not names:
        raise BenchmarkError(f"image folder {folder} has no class folder")
    return sorted(names, key=int if all(name.isdecimal() for name in names) else str)


def _images(folder: Path) -> list[Path]:
    """Return the image files of one class, sorted."""
    visible = [path for path in sorted(folder.rglob("*")) if not _hidden(path.relative_to(folder.parent))]
    if unread := next((path for path in visible if path.suffix.lower() in UNREAD), None):
        raise BenchmarkError(f"{unread} is an image of a format that is not read; convert it to PNG")
    paths = [path for path in visible if path.suffix.lower() in SUFFIXES]
    if not paths:
        raise BenchmarkError(f"image folder {folder} holds no image ({', '.join(sorted(SUFFIXES))})")
    return paths


def _chosen(classes: list[list[Path]], spec: DataSpec) -> list[list[Path]]:
    """Draw as many images of each class as the splits need: test, and twice validation so that training images remain."""
    assert spec.test is not None  # checked by `read`
    count = -(-(spec.test + 2 * spec.validation) // spec.classes)
    generator = np.random.default_rng(spec.seed)
    return [[paths[i] for i in np.sort(generator.permutation(len(paths))[:count])] for paths in classes]


def load(paths: Sequence[Path], labels: ArrayLike, spec: DataSpec) -> Images:
    """Return the images of these files in the track's shape."""
    pixels = np.empty((len(paths), *spec.shape), np.uint8)  # filled in place: at 224 pixels it takes gigabytes
    for i, path in enumerate(paths):
        pixels[i] = opened(path, spec.shape, str(path), path)
    return Images(pixels, np.asarray(labels, dtype=np.int64))


def opened(source: Path | BinaryIO, shape: tuple[int, int, int], name: str, file: Path) -> np.ndarray:
    """Return an image as (c, h, w) uint8.

    Raises:
        BenchmarkError: it does not open or is not of 8 bits a channel; with the sha256 of `file`, which contains it.
    """
    try:
        with Image.open(source) as image:
            return _pixels(image, shape)
    except BenchmarkError as error:
        raise BenchmarkError(f"{name}: {error}") from None
    except (UnidentifiedImageError, OSError) as error:
        raise BenchmarkError(
            f"{name} does not open as an image (sha256 {files.sha256_file(file)}): {error}; "
            "replace it with the data set's own file"
        ) from None


def _pixels(image: Image.Image, shape: tuple[int, int, int]) -> np.ndarray:
    channels, height, width = shape
    if image.mode not in MODES:
        raise BenchmarkError(f"its pixel format {image.mode} is not 8 bits a channel; convert it to 8 bits")
    if image.has_transparency_data and np.asarray(image.convert("RGBA").getchannel("A")).min() < 255:
        raise BenchmarkError("it is partly transparent; put it on a background")
    image = image.convert("L" if channels == 1 else "RGB")
    if image.size != (width, height):
        image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    array = np.asarray(image, dtype=np.uint8)
    return array[None] if channels == 1 else np.ascontiguousarray(array.transpose(2, 0, 1))
