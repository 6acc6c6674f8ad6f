"""The shipped tracks: each loads, and those of usual archives read files in their layout."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import yaml
from PIL import Image
from tiny_sources import write_cifar, write_folder, write_svhn
from typer.testing import CliRunner

from benchmark.commands.main import app
from benchmark.data.prepare import read, split
from benchmark.records import robustbench
from benchmark.specs import tracks
from benchmark.specs.threat import AttackSpec
from benchmark.specs.track import Track


def test_every_track_loads_with_its_radii() -> None:
    for name in tracks.names():
        assert tracks.load(name).suites
    cifar10 = tracks.load("cifar10")
    assert [threat.eps for threat in cifar10.threats] == [8 / 255, 0.5]
    assert cifar10.certified_radii[0] == 36 / 255
    spec = yaml.safe_load("{attack: pgd, norm: Linf, eps: 8/255}")
    assert AttackSpec.model_validate(spec).eps == 8 / 255
    for wrong in ("8/0", "8 by 255", "eight"):
        with pytest.raises(ValueError, match="eps"):
            AttackSpec.model_validate(spec | {"eps": wrong})


@pytest.mark.parametrize("name", ["cifar10", "svhn", "imagenette"])
def test_a_shipped_track_reads_its_archive(name, tmp_path, monkeypatch) -> None:
    if name == "cifar10":
        write_cifar(tmp_path, monkeypatch, "cifar10")
    elif name == "svhn":
        write_svhn(tmp_path, monkeypatch)
    else:
        write_folder(tmp_path)
        (tmp_path / "test").rename(tmp_path / "val")
    track = tracks.load(name)
    classes = 2 if name == "imagenette" else 10
    pools = read(track.data.model_copy(update={"path": str(tmp_path), "classes": classes}))
    assert len(pools["train"])
    assert len(pools["test"])
    assert pools["test"].pixels.shape[1:] == track.data.shape


def test_imagenets_validation_folder_alone_gives_the_splits_of_its_track(tmp_path) -> None:
    """Only as many images a class as the track needs are read, drawn by its seed."""
    for label in range(3):
        for number in range(9):
            path = tmp_path / f"n{label:08d}/{number}.png"
            path.parent.mkdir(exist_ok=True)
            Image.new("RGB", (40, 30), (label, number, 0)).save(path)
    data = tracks.load("imagenet").data.model_copy(
        update={"path": str(tmp_path), "classes": 3, "validation": 3, "test": 6, "shape": (3, 32, 32)}
    )
    pools = read(data)
    assert np.bincount(pools["all"].labels).tolist() == [4, 4, 4]
    assert (pools["all"].pixels[:, 0, 0, 0] == pools["all"].labels).all()
    parts = split(data, pools)
    assert {name: np.bincount(part.labels).tolist() for name, part in parts.items()} == {
        "train": [1, 1, 1], "validation": [1, 1, 1], "test": [2, 2, 2]
    }  # fmt: skip
    assert parts["test"].digest() == split(data, read(data))["test"].digest()


@pytest.mark.parametrize("eps", ["8/255", "0.0313725", 8 / 255])
def test_robustbenchs_rows_fit_the_shipped_track(tmp_path, monkeypatch, eps) -> None:
    """For every way to write the radius, including six digits."""
    row = {
        "link": "https://arxiv.org/abs/1", "name": "A paper", "authors": "A", "additional_data": False, "number_forward_passes": 1, "dataset": "cifar10",
        "venue": "V", "architecture": "A", "eps": eps, "clean_acc": "85.34", "reported": "58", "autoattack_acc": "53.42",
    }  # fmt: skip
    path = tmp_path / "cifar10/Linf/Rice2020Overfitting.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(row))
    board, left_out = robustbench.read_board(tmp_path, tracks.load("cifar10"))
    assert not left_out
    assert math.isclose(board.rows[0].threat.eps, 8 / 255, rel_tol=1e-5)
    monkeypatch.setattr(robustbench, "CLAIMED", tmp_path / "claimed")
    done = CliRunner().invoke(app, ["import-robustbench", str(tmp_path), "--track", "cifar10"])
    assert done.exit_code == 0, done.exception
    assert "1 rows, 0 left out" in done.stdout


def test_an_l2_radius_of_pixels_up_to_255_is_refused() -> None:
    rules = tracks.load("digits").model_dump()
    rules["suites"]["standard"][1]["eps"] = 128
    with pytest.raises(ValueError, match=r"L2 eps 128 is above 8, the diameter of 1x8x8 images.*so 128/255 is 0\.502"):
        Track.model_validate(rules)
