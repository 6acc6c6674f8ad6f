"""An image folder: <path>/train/<class>/<image> and <path>/test (or val)/<class>/<image>; classes sorted by name, or by
number where all names are numbers. Folders within a class's (TinyImageNet's train/<class>/images) are its own too; hidden
ones are none. Where a track says `data.test`, <path>/<class>/<image> alone, as ImageNet's validation images: of each class as
many are read as the track wants, drawn by its seed.

An image of another size is scaled and cropped around its centre to the track's shape (bilinear): the track's native
resolution is that shape, and radii refer to it.
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

MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr")  # PIL's, of 8 bits a channel or fewer
OTHERS = {".tif", ".tiff", ".gif", ".heic", ".avif", ".jp2", ".npy"}  # images that are not read
SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm"}


def read(spec: DataSpec) -> dict[str, Images]:
    """
    Raises:
        BenchmarkError: no such folder, no image in it, classes that differ between splits, an image that does not open
            (its sha256 is shown).
    """
    root = Path(spec.path or "data")
    test = root / "test" if (root / "test").is_dir() else root / "val"
    whole = spec.test and root.is_dir() and not (root / "train").is_dir() and not test.is_dir()
    folders = {"all": root} if whole else {"train": root / "train", "test": test}
    for folder in folders.values():
        if not folder.is_dir():
            raise BenchmarkError(f"image folder {folder} is missing; expected {root}/train and {root}/test (or val)")
    first, *others = (_classes(folder) for folder in folders.values())
    if odd := {name for other in others for name in {*first} ^ {*other}}:
        raise BenchmarkError(f"image folder {root}: class {min(odd)!r} stands in only one of train and test")
    if len(first) != spec.classes:  # labels are places among the folders: one that is missing would move all after it
        raise BenchmarkError(f"image folder {root} has folders of {len(first)} classes, the track says {spec.classes}")
    images = {name: [_images(folder / label) for label in first] for name, folder in folders.items()}
    if whole:
        images["all"] = _chosen(images["all"], spec)
    pools = {}
    for name, classes in images.items():
        labels = np.repeat(range(len(classes)), [len(paths) for paths in classes])
        pools[name] = load([path for paths in classes for path in paths], labels, spec)
    return pools


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "__")) for part in path.parts)


def _classes(folder: Path) -> list[str]:
    if beside := next((path for path in sorted(folder.iterdir()) if path.suffix.lower() in SUFFIXES | OTHERS), None):
        raise BenchmarkError(f"{beside} stands in no folder of a class")
    names = [entry.name for entry in folder.iterdir() if entry.is_dir() and not _hidden(Path(entry.name))]
    if not names:
        raise BenchmarkError(f"image folder {folder} holds no folder of a class")
    return sorted(names, key=int if all(name.isdecimal() for name in names) else str)


def _images(folder: Path) -> list[Path]:
    """Those of one class, in order."""
    shown = [path for path in sorted(folder.rglob("*")) if not _hidden(path.relative_to(folder.parent))]
    if other := next((path for path in shown if path.suffix.lower() in OTHERS), None):
        raise BenchmarkError(f"{other} is an image of a kind that is not read; convert it to PNG")
    paths = [path for path in shown if path.suffix.lower() in SUFFIXES]
    if not paths:
        raise BenchmarkError(f"image folder {folder} holds no image ({', '.join(sorted(SUFFIXES))})")
    return paths


def _chosen(classes: list[list[Path]], spec: DataSpec) -> list[list[Path]]:
    """As many images of each class as the track's splits want: those for testing, and validation's twice, since training
    images have to be left over.
    """
    assert spec.test is not None  # asked for by `read`
    each = -(-(spec.test + 2 * spec.validation) // spec.classes)
    draw = np.random.default_rng(spec.seed)
    return [[paths[place] for place in np.sort(draw.permutation(len(paths))[:each])] for paths in classes]


def load(paths: Sequence[Path], labels: ArrayLike, spec: DataSpec) -> Images:
    """The images of some files, in the track's shape."""
    pixels = np.empty((len(paths), *spec.shape), np.uint8)  # filled in place: at 224 pixels the whole takes a gigabyte
    for place, path in enumerate(paths):
        pixels[place] = opened(path, spec.shape, str(path), path)
    return Images(pixels, np.asarray(labels, dtype=np.int64))


def opened(source: Path | BinaryIO, shape: tuple[int, int, int], name: str, file: Path) -> np.ndarray:
    """(c, h, w) uint8 of an image; a BenchmarkError where it does not open, with the sha256 of the file that it stands in."""
    try:
        with Image.open(source) as image:
            return to_pixels(image, shape)
    except BenchmarkError as error:
        raise BenchmarkError(f"{name}: {error}") from None
    except (UnidentifiedImageError, OSError) as error:
        digest = files.sha256_file(file)
        raise BenchmarkError(
            f"{name} does not open as an image (sha256 {digest}): {error}; put the data set's own file there again"
        ) from None


def to_pixels(image: Image.Image, shape: tuple[int, int, int]) -> np.ndarray:
    """(c, h, w) uint8 of a PIL image."""
    channels, height, width = shape
    if image.mode not in MODES:
        raise BenchmarkError(f"it has pixels of kind {image.mode}, which is not 8 bits a channel; convert it to 8 bits")
    if image.has_transparency_data and np.asarray(image.convert("RGBA").getchannel("A")).min() < 255:
        raise BenchmarkError("it is partly transparent; put it on a background")
    image = image.convert("L" if channels == 1 else "RGB")
    if image.size != (width, height):
        image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    array = np.asarray(image, dtype=np.uint8)
    return array[None] if channels == 1 else np.ascontiguousarray(array.transpose(2, 0, 1))
