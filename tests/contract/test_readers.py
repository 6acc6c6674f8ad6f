"""Every reader of benchmark/data: whole numbers and labels that fit, the same bytes each time, one line for what is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import components
import numpy as np
import pytest
import tiny_sources

from benchmark.data.images import Images
from benchmark.data.prepare import NO_SOURCES, read
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.data import DataSpec

Write = Callable[[Path, pytest.MonkeyPatch], object]
COLOUR: dict[str, Any] = {"shape": (3, 32, 32), "classes": 10}
SMALL: dict[str, Any] = {"shape": (3, 16, 16), "classes": 3}
TWO = np.arange(20) % 2


def write_tables(root: Path, _: pytest.MonkeyPatch) -> None:
    tiny_sources.write_parquet(root / "train-00000-of-00002.parquet", slice(0, 7))
    tiny_sources.write_parquet(root / "train-00001-of-00002.parquet", slice(7, 14))
    tiny_sources.write_parquet(root / "test.parquet", slice(14, 20))


# reader (and data set, where it has several): what it reads, and the track's rules for it; no file where it brings its own
SOURCES: dict[tuple[str, str | None], tuple[Write | None, dict[str, Any]]] = {
    ("digits", None): (None, {"shape": (1, 8, 8), "classes": 10, "test": 40}),
    ("image_folder", None): (lambda root, _: tiny_sources.write_folder(root), {**COLOUR, "classes": 2}),
    ("parquet", None): (write_tables, COLOUR),
    ("robustbench_imagenet", None): (tiny_sources.write_imagenet, SMALL),
    ("sentences", None): (
        lambda root, _: tiny_sources.write_sentences(root, "sentence\tlabel\n" + "A fine film\t1\na dull one\t0\n" * 4),
        {"shape": (1, 4, 64), "classes": 2},
    ),
    ("torchvision_archive", "cifar10"): (lambda root, patch: tiny_sources.write_cifar(root, patch, "cifar10", TWO), COLOUR),
    ("torchvision_archive", "cifar100"): (
        lambda root, patch: tiny_sources.write_cifar(root, patch, "cifar100", TWO),
        {**COLOUR, "classes": 100},
    ),
    ("torchvision_archive", "svhn"): (tiny_sources.write_svhn, COLOUR),
    ("torchvision_archive", "mnist"): (lambda root, _: tiny_sources.write_mnist(root), {"shape": (1, 28, 28), "classes": 10}),
    ("torchvision_folder", "caltech101"): (lambda root, _: tiny_sources.write_caltech(root), {**SMALL, "test": 3}),
    ("torchvision_folder", "flowers102"): (tiny_sources.write_flowers, {"shape": (1, 16, 16), "classes": 3}),
}
READERS = sorted(set(components.names("data", "read")) - NO_SOURCES)
CASES = list(SOURCES)
FILES = [case for case in CASES if SOURCES[case][0]]
IDS = [" ".join(filter(None, case)) for case in CASES]


def rules(case: tuple[str, str | None], root: Path) -> DataSpec:
    source, dataset = case
    return DataSpec(source=source, dataset=dataset, path=str(root), validation=1, **SOURCES[case][1])


@pytest.mark.parametrize("name", READERS)
def test_each_reader_has_files_to_be_tried_on(name) -> None:
    assert name in {source for source, _ in SOURCES}, (
        f"benchmark/data/{name}.py: give SOURCES of tests/contract/test_readers.py a few small files that it reads"
    )
    module = components.module("data", name)
    for table in ("DATASETS", "FOLDERS"):
        for dataset in getattr(module, table, ()):
            assert (name, dataset) in SOURCES, f"benchmark/data/{name}.py reads {dataset}: give SOURCES files of it"


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_pools_are_images_that_fit_the_track_the_same_each_time(case, tmp_path, monkeypatch) -> None:
    write, spec = SOURCES[case][0], rules(case, tmp_path)
    if write:
        write(tmp_path, monkeypatch)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    pools = read(spec)
    np.random.seed(1)  # whatever was drawn before
    assert {k: images.digest() for k, images in read(spec).items()} == {k: images.digest() for k, images in pools.items()}
    assert set(pools) in ({"all"}, {"train", "test"})
    assert ("all" in pools) == (spec.test is not None)
    for images in pools.values():
        assert isinstance(images, Images)
        floats = images.floats()
        assert (images.pixels.dtype, images.labels.dtype, floats.dtype) == (np.uint8, np.int64, np.float32)
        assert images.pixels.shape == (len(images), *spec.shape)
        assert len(images) > 0
        assert images.pixels.max() <= images.levels
        assert 0 <= images.labels.min() <= images.labels.max() < spec.classes
        assert 0 <= floats.min() <= floats.max() <= 1
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("case", FILES, ids=[" ".join(filter(None, case)) for case in FILES])
@pytest.mark.parametrize("folder", ["", "nowhere"])
def test_missing_files_are_one_line_that_says_what_to_do(case, folder, tmp_path) -> None:
    with pytest.raises(BenchmarkError, match=r"put |unpack |expected ") as raised:
        read(rules(case, tmp_path / folder))
    assert str(tmp_path / folder) in str(raised.value)
    assert not list(tmp_path.iterdir()), "a reader leaves nothing behind"
