"""Readers on small files that the tests write, splits, hashes, and bad input."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from tiny_linear_row import NAMES
from tiny_sources import LABELS, PIXELS, write_cifar, write_folder, write_mnist, write_parquet, write_svhn

from benchmark.data.images import Images, evaluation_index, load_split
from benchmark.data.prepare import prepare, read, split
from benchmark.data.tensors import evaluation_images, unseen_images
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import tracks
from benchmark.specs.data import DataSpec
from benchmark.specs.rows import load_row


def spec(**changes) -> DataSpec:
    return DataSpec(**{"source": "digits", "validation": 5, "shape": (3, 32, 32), "classes": 10, **changes})


def test_digits_are_the_real_ones_split_as_pinned_and_changes_are_refused(tmp_path) -> None:
    data = tracks.load("digits").data
    assert set(data.sha256) == {"train", "validation", "test"}
    assert prepare(data, tmp_path) == data.sha256
    images = load_split(tmp_path, "test")
    assert images.pixels.shape == (400, 1, 8, 8)
    assert (images.floats().min(), images.floats().max()) == (0, 1)
    counts = np.bincount(images.labels)
    assert counts.max() - counts.min() <= 2  # stratified
    wrong = data.model_copy(update={"sha256": {"test": "0" * 64}})
    with pytest.raises(BenchmarkError, match=f"{data.sha256['test']}, the track pins {'0' * 64}"):
        prepare(wrong, tmp_path)
    with pytest.raises(BenchmarkError, match="; the files in data/there differ from the track's: put the right ones there"):
        prepare(wrong.model_copy(update={"path": "data/there"}), tmp_path)
    path = tmp_path / "train.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(BenchmarkError, match=r"damaged \(sha256"):
        load_split(tmp_path, "train")
    path.unlink()
    with pytest.raises(BenchmarkError, match="is missing"):
        load_split(tmp_path, "train")


def test_splits_are_disjoint_complete_and_fixed_by_the_seed() -> None:
    numbered = Images(np.arange(200, dtype=np.uint8).reshape(200, 1, 1, 1), np.arange(200) % 10)

    def parts(**changes) -> list[np.ndarray]:
        return [part.pixels.ravel() for part in split(spec(validation=30, test=40, **changes), {"all": numbered}).values()]

    values, again, other = parts(), parts(), parts(seed=1)
    assert [len(part) for part in values] == [130, 30, 40]
    assert sorted(np.concatenate(values)) == list(range(200))
    assert all(np.array_equal(a, b) for a, b in zip(values, again, strict=True))
    assert not np.array_equal(values[2], other[2])


def test_evaluation_images_are_the_same_for_everyone() -> None:
    assert len({*evaluation_index(400, 100, 0), *evaluation_index(400, 100, 0)}) == 100
    with pytest.raises(BenchmarkError, match="500 evaluation images are asked for"):
        evaluation_index(400, 500, 0)


def test_unseen_images_are_the_test_images_outside_the_evaluation(linear_row) -> None:
    row, cpu = load_row(*NAMES), torch.device("cpu")
    seen, unseen = (images.flatten(1).tolist() for images, _ in (evaluation_images(row, cpu), unseen_images(row, cpu)))
    every = load_split(row.data, "test").floats().reshape(40, -1).tolist()
    assert (len(seen), len(unseen)) == (20, 20)
    assert sorted(seen + unseen) == sorted(every)


@pytest.mark.parametrize("kind", ["cifar10", "cifar100", "svhn", "mnist"])
def test_archives(tmp_path, monkeypatch, kind) -> None:
    if kind == "mnist":
        write_mnist(tmp_path)
    elif kind == "svhn":
        write_svhn(tmp_path, monkeypatch)
    else:
        write_cifar(tmp_path, monkeypatch, kind)
    shape = (1, 28, 28) if kind == "mnist" else (3, 32, 32)
    pools = read(spec(source="torchvision_archive", dataset=kind, path=str(tmp_path), shape=shape))
    assert np.array_equal(pools["train"].pixels, PIXELS[:14, : shape[0], : shape[1], : shape[2]])
    assert np.array_equal(pools["test"].labels, LABELS[:6] if kind == "mnist" else LABELS[14:])


def test_a_corrupt_archive_and_an_unknown_one_are_refused(tmp_path, monkeypatch) -> None:
    write_cifar(tmp_path, monkeypatch, "cifar10")
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"cut short")
    wrong = r"batches-py is incomplete or wrong \(RuntimeError: Dataset not found or corrupted\.\); put unpacked"
    for dataset, message in (("cifar10", wrong), ("cifar11", "did you mean 'cifar10'")):
        with pytest.raises(BenchmarkError, match=message):
            read(spec(source="torchvision_archive", dataset=dataset, path=str(tmp_path)))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train-images-idx3-ubyte", b"<!DOCTYPE html>", r"incomplete or wrong \(AssertionError\); put unpacked"),
        ("train-labels-idx1-ubyte", b"\0\0\x08\1\0\0\0\1\7", r"wrong \(ValueError: pixels .* labels \(1,\)\)"),
        ("*-ubyte", None, r"MNIST/raw/\*-ubyte is missing; put unpacked files there$"),
    ],
)
def test_wrong_and_packed_files_of_mnist_are_refused(tmp_path, name, content, message) -> None:
    write_mnist(tmp_path)
    for path in (tmp_path / "MNIST/raw").glob(name):
        path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(BenchmarkError, match=message):
        read(spec(source="torchvision_archive", dataset="mnist", path=str(tmp_path), shape=(1, 28, 28)))


def test_image_folder(tmp_path) -> None:
    write_folder(tmp_path)
    folder = spec(source="image_folder", path=str(tmp_path), classes=2)
    pools = read(folder)
    assert np.array_equal(pools["train"].pixels, PIXELS[:6])
    assert pools["test"].labels.tolist() == [0, 0, 0, 1, 1, 1]
    (tmp_path / "train/cat/images").mkdir()  # as in TinyImageNet
    for image in [*(tmp_path / "train/cat").glob("*.png")]:
        image.rename(tmp_path / "train/cat/images" / image.name)
    assert np.array_equal(read(folder)["train"].pixels, pools["train"].pixels)
    smaller = read(spec(source="image_folder", path=str(tmp_path), classes=2, shape=(1, 16, 16)))
    assert smaller["train"].pixels.shape == (6, 1, 16, 16)


def put(root: Path, name: str, content: bytes | np.ndarray | Path) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Path):
        (root / name).symlink_to(root / content)
    elif isinstance(content, bytes):
        (root / name).write_bytes(content)
    else:
        Image.fromarray(content).save(root / name)


def test_class_folders_that_are_numbers_are_their_labels_and_hidden_ones_are_skipped(tmp_path) -> None:
    for name in ("train", "test"):
        for label in range(12):
            put(tmp_path, f"{name}/{label}/a.png", np.full((32, 32, 3), 20 * label, np.uint8))
        put(tmp_path, f"{name}/.ipynb_checkpoints/a.png", b"")
        put(tmp_path, f"{name}/3/.ipynb_checkpoints/a.png", b"")
        put(tmp_path, f"{name}/3/3_boxes.txt", b"")
        (tmp_path / name / "5/a.png").rename(tmp_path / name / "5/a.JFIF")
    pools = read(spec(source="image_folder", path=str(tmp_path), classes=12))
    assert pools["train"].labels.tolist() == [*range(12)]
    assert pools["train"].pixels[:, 0, 0, 0].tolist() == [20 * label for label in range(12)]


WORDS = np.arange(1024, dtype=np.uint16).reshape(32, 32) * 60
SHA256 = hashlib.sha256(b"no image").hexdigest()
DEEP = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0 \0\0\0 \x10\2\0\0\0\xac\x881\xe0\0\0\0\0IDAT"  # RGB of 16 bits, 32x32


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train/cat/odd.png", WORDS, r"train/cat/odd\.png: .*is not 8 bits a channel"),
        ("train/cat/odd.png", np.full((32, 32, 4), 100, np.uint8), r"odd\.png: .*it is partly transparent"),
        ("train/cat/0.png", b"no image", rf"0\.png does not open as an image \(sha256 {SHA256}"),
        ("train/cat/odd.png", DEEP, r"odd\.png: .*is not 8 bits a channel"),
        ("train/cat/big.png", np.zeros((200, 200, 3), np.uint8), r"big\.png does not open .*exceeds limit"),
        ("train/cat/float.tiff", b"", r"float\.tiff is a file of a kind that is not read; convert it to PNG or"),
        ("train/cat/image", b"", "cat/image is a file of a kind that is not read"),
        ("train/cat/a.JPEG.part", b"", r"a\.JPEG\.part is a file of a kind that is not read"),
        ("train/cat/a.JPEG", Path("nowhere"), r"a\.JPEG cannot be read"),
        ("train/cat/more", Path(), "cat/more in a class is a link or a folder named"),
        ("train/cat/a.JPEG/0.png", b"", r"a\.JPEG in a class is a link or a folder named as a class or an image"),
        ("train/cat/dog/0.png", b"", "cat/dog in a class is a link or a folder named"),
        ("train/cat/locked/0.png", b"", "cat/locked cannot be read; let this user read it, or put"),
        ("test/images/0.png", b"", "'images' is in only one of train and test; test and val are both there: remove test"),
        ("train/beside.png", b"", r"beside\.png is in no class folder"),
        ("train/zebra/0.png", b"", "'zebra' is in only one"),
        ("test/0/.keep", b"", "'0' is in only one"),
        (None, 3, "has folders of 2 classes, the track says 3"),
        ("test/dog", None, r"test/dog holds no image"),
    ],
)
def test_ambiguous_image_folders_are_refused_by_name(tmp_path, monkeypatch, name, content, message) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10000)
    monkeypatch.setattr(
        "os.access", lambda path, mode: path.exists() and not (path.name == "locked" and mode & os.X_OK)
    )  # root may read all
    write_folder(tmp_path)
    (tmp_path / "val").mkdir()
    if name is not None and content is not None:
        put(tmp_path, name, content)
    for path in (tmp_path / name).iterdir() if content is None else ():
        path.unlink()
    with pytest.raises(BenchmarkError, match=message):
        read(spec(source="image_folder", path=str(tmp_path), classes=3 if name is None else 2))
    with pytest.raises(BenchmarkError, match=r"splits train and test \(or val\) of their own; remove `data.test`"):
        read(spec(source="image_folder", path=str(tmp_path), test=4))


def test_hugging_face_parquet(tmp_path) -> None:
    write_parquet(tmp_path / "train-00000-of-00002.parquet", slice(0, 7))
    with pytest.raises(BenchmarkError, match=r"train-00000-of-00002\.parquet: keep one file, or all shards"):
        read(spec(source="parquet", path=str(tmp_path)))
    write_parquet(tmp_path / "train-00001-of-00002.parquet", slice(7, 14))
    with pytest.raises(BenchmarkError, match=rf"no test\*\.parquet in {tmp_path}"):
        read(spec(source="parquet", path=str(tmp_path)))
    write_parquet(tmp_path / "test.parquet", slice(14, 20), "image", "fine_label")
    pools = read(spec(source="parquet", path=str(tmp_path)))
    assert np.array_equal(pools["train"].pixels, PIXELS[:14])
    assert np.array_equal(pools["test"].labels, LABELS[14:])
    truncated = tmp_path / "train-00001-of-00002.parquet"
    write_parquet(tmp_path / "test (1).parquet", slice(14, 20))  # downloaded twice
    with pytest.raises(BenchmarkError, match=r"test \(1\)\.parquet: keep one file, or all shards"):
        read(spec(source="parquet", path=str(tmp_path)))
    truncated.write_bytes(truncated.read_bytes()[:-100])
    with pytest.raises(BenchmarkError, match=rf"{truncated} is no readable parquet file \(sha256 .*the data set's own"):
        read(spec(source="parquet", path=str(tmp_path)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"no train\*\.parquet in .*; put the data set's parquet files there"),
        (b"cut short", hashlib.sha256(b"cut short").hexdigest()),
        (
            pa.table({"img": [{"bytes": b"junk", "path": None}], "label": [0]}),
            r"row 0 does not open as an image \(sha256 \w+\): its format is not known; replace it with the data set's own file",
        ),
        (pa.table({"img": [None], "label": [0]}), "row 0 has no encoded image in `bytes`; write it there"),
        (pa.table({"img": [{"bytes": None, "path": "a.png"}], "label": [0]}), "row 0 has no encoded image"),
        (pa.table({"img": [None], "label": [0.9]}), r"1 labels \(double\) are not an integer a row"),
        (pa.table({"img": [None] * 2, "label": [0, None]}), r"2 labels \(int64\) are not an integer a row"),
        (pa.table({"img": [], "label": pa.array([], "int8")}), r"0 labels \(int8\) are not an integer a row; replace"),
        (pa.table({"pixels": [1]}), "no column img or image; it has pixels"),
    ],
)
def test_bad_parquet_is_refused_in_one_line(tmp_path, content, message) -> None:
    path = tmp_path / "train.parquet"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        pq.write_table(content, path)
    with pytest.raises(BenchmarkError, match=message):
        read(spec(source="parquet", path=str(tmp_path)))


def test_the_repository_holds_no_image_of_the_jpeg_track() -> None:
    listed = subprocess.run(["git", "ls-files", tracks.load("cifar10_jpeg").data.path], capture_output=True, text=True)
    assert (listed.returncode, listed.stdout) == (0, ""), listed.stderr


@pytest.mark.slow
def test_the_jpeg_track_if_its_images_are_present(tmp_path) -> None:
    track = tracks.load("cifar10_jpeg")
    if not (Path(track.data.path) / "train.parquet").exists():
        pytest.skip(f"no {track.data.path} in this checkout")
    assert prepare(track.data, tmp_path) == track.data.sha256


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: read(spec(test=5)), "images are 1x8x8"),
        (lambda: read(spec(shape=(1, 8, 8), classes=9, test=5)), r"outside 0\.\.8"),
        (lambda: split(spec(), {"all": Images(PIXELS, LABELS)}), "no test split of its own"),
        (lambda: split(spec(test=500), {"all": Images(PIXELS, LABELS)}), "cannot hold 500"),
        (lambda: read(spec(source="digit")), "unknown data source 'digit'; did you mean 'digits'"),
    ],
)
def test_data_that_do_not_fit_the_track_are_refused(call, message) -> None:
    with pytest.raises(BenchmarkError, match=message):
        call()
