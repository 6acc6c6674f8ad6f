"""A stage cut by images: its parts, done apart and in any order, leave the whole to the byte, and nothing is done twice."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_linear_row
import torch
from stages import run_stage
from tiny_linear_row import NAMES, ROW
from tiny_models import Linear, grey_images
from tiny_project import Project

from benchmark.attacks import autoattack
from benchmark.audit import auditor
from benchmark.evaluation import suite
from benchmark.loading.rows import load_row
from benchmark.pipeline import inputs
from benchmark.runtime import scratch
from benchmark.runtime.clock import BLOCKS, Clock
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import AttackSpec
from benchmark.stages import catalogue
from benchmark.stages import smooth as smooth_stage
from benchmark.stages.base import Work, part_folder
from benchmark.stages.evaluation import by_blocks

CUT = ("attack-papers", "certify", "smooth")
SMOOTHING = "smoothing: {sigma: 0.1, n0: 10, n: 64, looks: 3, alpha: 0.05, seed: 0}\n"
RANDOM = "    - {attack: pgd, norm: Linf, eps: 0.1, parameters: {steps: 2, step_size: 0.05}}\n"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A row of a linear model with attacks, certificates and a smoothed version of 20 images, done whole."""
    project = tiny_linear_row.new(tmp_path_factory.mktemp("parts") / "project")
    track = project.root / "benchmark/tracks/tiny.yaml"
    rules = track.read_text().replace("certified_radii: []\n", f"certified_radii: [0.1]\n{SMOOTHING}")
    track.write_text(rules.replace("development:\n", f"{RANDOM}development:\n"))
    about = project.root / "submissions/Tiny2026Linear/submission.yaml"
    about.write_text(about.read_text() + "        certificate: {name: lipschitz}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project.root)
        patch.setattr(smooth_stage, "BLOCK", 3)
        for stage in ("data", "train", *CUT):
            run_stage(stage, *(NAMES[:1] if stage == "data" else NAMES))
    return project


@pytest.fixture
def certified(done: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of it, as working directory."""
    monkeypatch.chdir(done.copy(tmp_path / "row").root)
    monkeypatch.setattr(smooth_stage, "BLOCK", 3)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def never(*_: object, **__: object) -> None:
    raise AssertionError("computed twice")


@pytest.mark.parametrize("name", CUT)
def test_parts_leave_the_whole_to_the_byte(certified, name, monkeypatch) -> None:
    one = catalogue.planned(*NAMES, name)
    whole = contents(ROW / name)
    shutil.rmtree(ROW / name)
    inputs.write("tiny")
    parts = [f"{part.start}-{part.stop}" for part in one.stage.parts(one.row, name, 7)]
    assert len(parts) >= 3
    place = scratch.place(f"{NAMES[0]}/{NAMES[1]}/{name}", scratch.key(one.stage.identity(one.row, name)))
    for part in reversed(parts):
        one.stage.execute(name, *NAMES, part)
        shutil.copytree(part_folder(one.row, name, part), place / BLOCKS, dirs_exist_ok=True)
    seconds = [json.loads(path.read_text())["core_seconds"] for path in (place / BLOCKS).glob("seconds-*.json")]
    monkeypatch.setattr("benchmark.attacks.pgd.attack", never)
    monkeypatch.setattr("benchmark.certificates.smoothing.smooth", never)
    monkeypatch.setattr(auditor, "attack_balls", never)
    one.stage.execute(name, *NAMES)
    assert contents(ROW / name) == whole
    times = json.loads((ROW / f"times/{name}.json").read_text())
    assert times["core_seconds"] >= sum(seconds) > 0
    assert times["parts"] == {times["device"]: pytest.approx(sum(seconds))}
    assert len(seconds) == len(parts)


def test_a_stage_is_cut_after_whole_blocks_and_where_it_may_be(certified) -> None:
    row = load_row(*NAMES)
    attack, smooth = catalogue.find("attack-papers"), catalogue.find("smooth")
    assert attack.parts(row, "attack-papers", 20) == []
    assert attack.parts(row, "attack-papers", 13) == [range(12), range(12, 20)]
    assert attack.parts(row, "attack-papers", 1) == [range(6), range(6, 12), range(12, 18), range(18, 20)]
    assert [len(part) for part in smooth.parts(row, "smooth", 7)] == [6, 6, 6, 2]
    assert attack.parts(row, "attack-adaptive", 1) == []  # what somebody brought may remember what it was asked
    assert catalogue.find("train").parts(row, "train", 1) == []
    opened = replace(row, submission=row.submission.model_copy(update={"division": "open"}))
    assert attack.parts(opened, "attack-papers", 1) == []


@pytest.mark.parametrize("part", ["x", "3", "5-3", "-1-4"])
def test_images_that_are_none_are_refused(certified, part) -> None:
    with pytest.raises(BenchmarkError, match=r"names no images; give <first>-<end>, such as 0-200"):
        catalogue.find("certify").execute("certify", *NAMES, part)


def test_a_stage_that_is_not_cut_says_so(certified) -> None:
    with pytest.raises(BenchmarkError, match="train is not cut by images"):
        catalogue.find("train").execute("train", *NAMES, "0-6")


def test_autoattack_finds_in_parts_what_it_finds_in_one_go(tmp_path, monkeypatch) -> None:
    """Square and FAB draw by the image's number in the data set, a warning of the components' shares needs all parts."""
    monkeypatch.setattr("benchmark.attacks.engine.square.QUERIES", 50)
    model, images = Linear().eval().requires_grad_(False), grey_images()
    labels = model(images).argmax(1)
    specs = [AttackSpec(attack="autoattack", norm="L2", eps=float(model.radius(images, labels, "L2").median()))]
    options = {"batch_size": 6, "engine": "fast", "report": lambda _: None}
    (tmp_path / "whole").mkdir()
    ((_, whole, after),) = suite.run_suite(model, images, labels, specs, folder=tmp_path / "whole", **options)
    for part in (range(12, 16), range(6, 12), range(6)):
        suite.attack_part(model, images, labels, specs, part, folder=tmp_path / "parts", **options)
    monkeypatch.setattr(autoattack, "attack", never)
    ((_, joined, again),) = suite.run_suite(model, images, labels, specs, folder=tmp_path / "parts", **options)
    assert torch.equal(joined.adversarial, whole.adversarial)
    assert torch.equal(again.margin, after.margin)
    assert joined.remaining == whole.remaining
    assert joined.warnings == whole.warnings
    assert 0 < int(joined.robust.sum()) < len(images)


def test_columns_keep_the_order_in_which_they_were_computed(certified) -> None:
    """The evidence's bytes have an order of columns, and so have those that were published."""
    work = Work(load_row(*NAMES), "smooth", {}, (), Path("scratch"), Clock(Path("scratch")))

    def compute(places: range) -> dict[str, torch.Tensor]:
        numbers = torch.tensor([*places])
        return {"z": numbers > 1, "a": numbers.double(), "m": numbers}

    for _ in range(2):  # the second time from the blocks
        found = by_blocks(work, range(5), 2, compute, "tried")
        assert [*found] == ["z", "a", "m"]
        assert found["m"].tolist() == [0, 1, 2, 3, 4]
