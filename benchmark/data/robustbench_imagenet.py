"""Reader of RobustBench's ImageNet images in its crop, from ILSVRC 2012's validation images <path>/<class>/<image>.

The pool "test" is RobustBench's list, in its order; "train", for validation alone, is the first images of each class outside
it, twice as many as `validation`. torchvision scales the shorter side to 256 pixels (bilinear) and crops the centre.
"""

from __future__ import annotations

from importlib.metadata import distribution
from pathlib import Path

from torchvision.transforms.functional import center_crop, resize

from benchmark.data.image_folder import classes_in, images_in, load
from benchmark.data.images import Images
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.data import DataSpec

LIST = Path(str(distribution("robustbench").locate_file("robustbench/helper_files/imagenet_test_image_ids.txt")))


def read(spec: DataSpec) -> dict[str, Images]:
    """Return the pools "train" and "test". Raise a BenchmarkError for a missing image or another number of classes."""
    root, count = Path(spec.path or "data"), -(-2 * spec.validation // spec.classes)
    classes, listed = classes_in(root), dict.fromkeys(root / line for line in LIST.read_text().split())
    missing = [path for path in listed if not path.is_file()]
    if missing or len(classes) != spec.classes:
        problem = f"{missing[0]} is missing" if missing else f"{root} has folders of {len(classes)} classes"
        raise BenchmarkError(f"{problem}; put ILSVRC 2012's validation images into {root}, a folder a class")
    others = [[path for path in images_in(root / label, classes) if path not in listed][:count] for label in classes]

    def pool(paths: list[Path]) -> Images:
        labels = [classes.index(path.relative_to(root).parts[0]) for path in paths]
        return load(paths, labels, spec, lambda image, size: center_crop(resize(image, 256), size[::-1]))

    return {"train": pool([path for of_class in others for path in of_class]), "test": pool([*listed])}
