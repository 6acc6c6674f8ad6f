"""An image folder: <path>/train/<class>/<image> and <path>/test (or val)/<class>/<image>; classes sorted by name, or by
number where all names are numbers. Folders within a class's (TinyImageNet's train/<class>/images) are its own too; hidden
ones are none. Where a track says `data.test`, <path>/<class>/<image> alone, as ImageNet's validation images: of each class as
many are read as the track wants, drawn by its seed.

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
    if spec.test and root.is_dir() and not (root / "train").is_dir() and not test.is_dir():
        _check_count(root, len(_classes(root)), spec)
        return {"all": _load(_chosen(root, spec), spec)}
    folders = {"train": root / "train", "test": test}
    for folder in folders.values():
        if not folder.is_dir():
            raise BenchmarkError(f"image folder {folder} is missing; expected {root}/train and {root}/test (or val)")
    classes = {name: _classes(folder) for name, folder in folders.items()}
    if classes["train"] != classes["test"]:
        odd = sorted(set(classes["train"]) ^ set(classes["test"]))
        raise BenchmarkError(f"image folder {root}: class {odd[0]!r} stands in only one of train and test")
    _check_count(root, len(classes["train"]), spec)
    return {
        name: _load([one for paths in _paths(folder).values() for one in paths], spec)
        for name, folder in folders.items()
    }


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "__")) for part in path.parts)


def _classes(folder: Path) -> list[str]:
    if beside := next((path for path in sorted(folder.iterdir()) if path.suffix.lower() in SUFFIXES | OTHERS), None):
        raise BenchmarkError(f"{beside} stands in no folder of a class")
    found = [entry.name for entry in folder.iterdir() if entry.is_dir() and not _hidden(Path(entry.name))]
    if not found:
        raise BenchmarkError(f"image folder {folder} holds no folder of a class")
    return sorted(found, key=int if all(one.isdecimal() for one in found) else str)


def _paths(folder: Path) -> dict[int, list[tuple[Path, int]]]:
    """Each class's images with their label, by label."""
    found = {}
    for label, name in enumerate(_classes(folder)):
        shown = [path for path in sorted((folder / name).rglob("*")) if not _hidden(path.relative_to(folder))]
        if other := next((path for path in shown if path.suffix.lower() in OTHERS), None):
            raise BenchmarkError(f"{other} is an image of a kind that is not read; convert it to PNG")
        paths = [path for path in shown if path.suffix.lower() in SUFFIXES]
        if not paths:
            raise BenchmarkError(f"image folder {folder / name} holds no image ({', '.join(sorted(SUFFIXES))})")
        found[label] = [(path, label) for path in paths]
    return found


def _chosen(folder: Path, spec: DataSpec) -> list[tuple[Path, int]]:
    """As many images of each class as the track's splits want: those for testing, and validation's twice, since training
    images have to be left over.
    """
    assert spec.test is not None  # asked for by `read`
    each = -(-(spec.test + 2 * spec.validation) // spec.classes)
    draw = np.random.default_rng(spec.seed)
    found = []
    for paths in _paths(folder).values():
        found += [paths[place] for place in np.sort(draw.permutation(len(paths))[:each])]
    return found


def _check_count(root: Path, count: int, spec: DataSpec) -> None:
    """Labels are places among the folders: one that is missing would move all after it."""
    if count != spec.classes:
        raise BenchmarkError(f"image folder {root} has folders of {count} classes, the track says {spec.classes}")


def _load(found: list[tuple[Path, int]], spec: DataSpec) -> Images:
    pixels = np.empty((len(found), *spec.shape), np.uint8)  # filled in place: at 224 pixels the whole takes a gigabyte
    for place, (path, _) in enumerate(found):
        pixels[place] = opened(path, spec.shape)
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
    if image.has_transparency_data and np.asarray(image.convert("RGBA").getchannel("A")).min() < 255:
        raise BenchmarkError("it is partly transparent; put it on a background")
    image = image.convert("L" if channels == 1 else "RGB")
    if image.size != (width, height):
        image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    array = np.asarray(image, dtype=np.uint8)
    return array[None] if channels == 1 else np.ascontiguousarray(array.transpose(2, 0, 1))
