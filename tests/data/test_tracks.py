"""The shipped tracks: each loads, and those of usual archives read files in their layout."""

from __future__ import annotations

import numpy as np
import pytest
import yaml
from PIL import Image
from tiny_sources import write_cifar, write_folder, write_imagenet, write_mnist, write_svhn
from torchvision import transforms

from benchmark.data.prepare import read
from benchmark.data.robustbench_imagenet import LIST
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import tracks
from benchmark.specs.threat import AttackSpec


def test_every_track_loads_with_its_radii() -> None:
    for name in tracks.names():
        assert tracks.load(name).suites
    mnist, cifar10 = tracks.load("mnist"), tracks.load("cifar10")
    assert [sum(counts) for counts in mnist.data.images.values()] == [60000, 10000]
    assert "images" not in mnist.rules["data"]
    assert [threat.eps for threat in cifar10.threats] == [8 / 255, 0.5]
    assert cifar10.certified_radii[0] == 36 / 255
    spec = yaml.safe_load("{attack: pgd, norm: Linf, eps: 8/255}")
    assert AttackSpec.model_validate(spec).eps == 8 / 255
    for wrong in ("8/0", "8 by 255", "eight"):
        with pytest.raises(ValueError, match="eps"):
            AttackSpec.model_validate(spec | {"eps": wrong})


@pytest.mark.parametrize(
    ("name", "write", "images"),
    [
        ("cifar10", lambda root, patch: write_cifar(root, patch, "cifar10"), {}),
        ("svhn", write_svhn, {}),
        ("imagenette", lambda root, _: write_folder(root, "val"), {"train": 6, "test": 6}),
        ("mnist", lambda root, _: write_mnist(root), {"train": (2,) * 4 + (1,) * 6, "test": (1,) * 6 + (0,) * 4}),
    ],
)
def test_a_shipped_track_reads_its_archive_and_counts_its_images(name, write, images, tmp_path, monkeypatch) -> None:
    write(tmp_path, monkeypatch)
    classes = 2 if name == "imagenette" else 10
    data = tracks.load(name).data.model_copy(update={"path": str(tmp_path), "classes": classes})
    pools = read(data.model_copy(update={"images": images}))
    assert min(map(len, pools.values())) > 0
    assert pools["test"].pixels.shape[1:] == data.shape
    if images:
        with pytest.raises(
            BenchmarkError, match=r": (6|\(2, .*) train images, the data set has (9469|\(5923, 6742, .*\)); put"
        ):
            read(data)


def test_imagenet_is_robustbenchs_list_in_its_order_and_crop(tmp_path, monkeypatch) -> None:
    ids = LIST.read_text().split()  # of the installed package
    assert (len(set(ids)), len(ids), len({name.split("/")[0] for name in ids})) == (5000, 5000, 997)
    write_imagenet(tmp_path, monkeypatch)
    changes = {"path": str(tmp_path), "classes": 3, "validation": 3, "images": {"train": 6, "test": 4}}
    data = tracks.load("imagenet").data.model_copy(update=changes)
    pools = read(data)
    cropped = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224), transforms.PILToTensor()])
    for name, files in {
        "test": ["n2/1", "n0/0", "n2/0", "n1/2"], "train": ["n0/1", "n0/2", "n1/0", "n1/1", "n2/2", "n2/3"]
    }.items():  # fmt: skip
        images = [cropped(Image.open(tmp_path / f"{file}.png")).numpy() for file in files]
        assert np.array_equal(pools[name].pixels, np.stack(images))
        assert pools[name].labels.tolist() == [int(file[1]) for file in files]
    with pytest.raises(BenchmarkError, match=r"folders of 3 classes; put ILSVRC 2012's validation images into"):
        read(data.model_copy(update={"classes": 1000}))
    (tmp_path / "n2/0.png").unlink()
    with pytest.raises(BenchmarkError, match=r"n2/0\.png is missing; put ILSVRC 2012's"):
        read(data)
