"""What `rvb plan` says beforehand: held against what attacks ask, what stages write, and what is done already."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_linear_row
import torch
from edited_file import edit
from locked_project import lock
from stages import run_stage
from tiny_linear_row import NAMES
from tiny_models import Linear, grey_images
from torch import nn

from benchmark.loading.rows import load_row
from benchmark.pipeline import calibration, disk, planning
from benchmark.pipeline.attack_calls import calls
from benchmark.pipeline.planning import Plan, plan_run
from benchmark.pipeline.stopwatch import in_a_process
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import AttackSpec
from benchmark.specs.training import PrepareSpec
from benchmark.stages.catalogue import plan

CLASSES, BATCH = 5, 8
ASKED = [
    ("fgsm", {}), ("pgd", {"steps": 4, "step_size": 0.1}), ("apgd", {"restarts": 2}), ("autoattack", {}),
    ("cw", {"steps": 4, "step_size": 0.01, "c": 1.0}),
]  # fmt: skip


class Counting(nn.Module):
    """A model that counts the images that it is asked about."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.images = model, 0
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.images += len(x)
        return self.model(x)


def asked(spec: AttackSpec, component: str, **options: str) -> float:
    """Calls with a whole batch that an attack makes on images that the model gets right."""
    model, images = Counting(Linear(classes=CLASSES).requires_grad_(False)), grey_images(BATCH)
    labels = model(images).argmax(1)
    model.images = 0
    module = importlib.import_module(f"benchmark.attacks.{spec.attack}")
    options |= {"component": component} if hasattr(module, "components") else {}
    module.attack(model, images, labels, spec.threat, seed=0, **spec.parameters, **options)
    return model.images / BATCH


def planned(name: str, norm: str, eps: float, parameters: dict) -> list[tuple[AttackSpec, str]]:
    spec = AttackSpec(attack=name, norm=norm, eps=eps, parameters=parameters)
    module = importlib.import_module(f"benchmark.attacks.{name}")
    return [(spec, component) for component in getattr(module, "components", (name,))]


@pytest.mark.parametrize("eps", [1e-4, 0.02, 0.5], ids=["nothing breaks", "some break", "all break"])
@pytest.mark.parametrize("norm", ["L2", "Linf"])
@pytest.mark.parametrize(("name", "parameters"), ASKED, ids=[name for name, _ in ASKED])
def test_attacks_ask_at_most_as_often_as_is_planned(name, parameters, norm, eps) -> None:
    if (name, norm) == ("cw", "Linf"):
        pytest.skip("cw measures l2")
    for spec, component in planned(name, norm, eps, parameters):
        wanted = calls(spec, component, CLASSES, BATCH)
        assert wanted is not None
        found = asked(spec, component)
        assert found <= wanted.most, component
        if eps < 1e-3 and component not in ("square", "cw", "fgsm", "pgd"):  # Square asks nothing twice on small images
            assert found > 0.9 * wanted.usual, component


@pytest.mark.parametrize("norm", ["L2", "Linf"])
def test_the_authors_files_ask_at_most_as_often_too(norm) -> None:
    for spec, component in planned("autoattack", norm, 1e-4, {}):
        wanted = calls(spec, component, CLASSES, BATCH)
        assert wanted is not None
        assert asked(spec, component, engine="reference") <= wanted.most, component


def test_an_attack_that_somebody_brought_is_not_counted() -> None:
    assert calls(AttackSpec(attack="brought", norm="L2", eps=0.5), "brought", 10, 100) is None


def test_stages_leave_no_more_than_is_planned(linear_row) -> None:
    run_stage("collect", *NAMES)
    row = load_row(*NAMES)
    for one in plan(row):
        real = sum(path.stat().st_size for path in one.folder.rglob("*") if path.is_file())
        wanted = disk.kept(one, row.weights.stat().st_size)
        assert real <= wanted <= 12 * real + 50_000, (one.name, real, wanted)


@pytest.fixture
def fresh(tmp_path, monkeypatch) -> Path:
    """A project of one row in which nothing was run, as working directory."""
    project = tiny_linear_row.new(tmp_path / "project")
    monkeypatch.chdir(project.root)
    return project.root


def written(root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts}


def by_stage(found: Plan) -> dict[str, planning.PlannedStage]:
    return {one.stage: one for one in found.stages}


def test_a_row_that_was_never_run_is_measured_and_nothing_is_written(fresh) -> None:
    before, told = written(fresh), list[str]()
    found = plan_run("tiny", 1, say=told.append)
    assert written(fresh) == before
    assert not found.failed
    assert told == ["counting images", "measuring Tiny2026Linear-small, 1 of 1"]
    stages = by_stage(found)
    assert {name: one.how for name, one in stages.items()} == {
        "train": "measured", "attack-papers": "at most", "reliability": "measured", "attention": "measured",
        "collect": "typical",
    }  # fmt: skip
    assert all(0 < one.seconds <= one.most < 60 and one.disk for one in stages.values())
    assert all(50e6 < stages[name].memory < 8e9 for name in ("train", "attack-papers"))
    assert found.passes == pytest.approx(sum(one.seconds for one in stages.values())), "one stage after another"
    assert stages["train"].note.startswith("2 epochs of 27 steps, ")
    assert found.data_on_disk == 1797 * (64 + 8)
    assert found.uncounted == (
        "pipelines/tiny/_data/dvc.yaml:data (never run)", "pipelines/tiny/dvc.yaml:leaderboard",
    )  # fmt: skip


def test_a_recipe_of_preparations_alone_has_no_steps(fresh, monkeypatch) -> None:
    row = load_row(*NAMES)
    alone = row.settings.training.model_copy(update={"epochs": 0, "prepare": (PrepareSpec(name="l2_distillation"),)})
    row = replace(row, settings=row.settings.model_copy(update={"training": alone}))
    train = [one for one in plan(row) if one.name == "train"]
    found = calibration.calibrate(row, train, {"train": 100, "test": 20})
    assert (found.seconds["train"].usual, found.seconds["train"].missing) == (0, "the preparation l2_distillation")


def test_what_is_done_costs_nothing(fresh, monkeypatch) -> None:
    lock("tiny")
    monkeypatch.setattr(planning, "calibrate", lambda *_: pytest.fail("nothing is to be measured"))
    found = plan_run("tiny", 2)
    assert {one.how for one in found.stages} == {"done"}
    assert (found.passes, found.memory, found.disk, found.uncounted) == (0, 0, 0, ())


def test_only_what_changed_is_measured(fresh, monkeypatch) -> None:
    lock("tiny")
    edit("benchmark/attacks/pgd.py", "def attack(", "CHANGED = True\n\n\ndef attack(")
    measured = []

    def calibrate(row, stale, counts):
        measured.extend(one.name for one in stale)
        assert not counts, "a training that is done needs no images"
        return calibration.Calibration()

    monkeypatch.setattr(planning, "calibrate", calibrate)
    stages = by_stage(plan_run("tiny", 2))
    assert measured == ["attack-papers", "reliability", "collect"]
    assert stages["train"].how == stages["attention"].how == "done"


def test_a_row_whose_code_fails_is_named_and_the_others_are_measured(fresh) -> None:
    (fresh / "submissions/Tiny2026Linear/method.py").write_text("def build(data):\n    raise ValueError('no')\n")
    found = plan_run("tiny", 1)
    assert found.failed == {
        "Tiny2026Linear-small": "submissions/Tiny2026Linear/method.py, line 2: build failed: ValueError: no"
    }
    assert found.stages == ()


def test_images_that_are_nowhere_are_asked_for_in_one_line(fresh) -> None:
    track = fresh / "benchmark/tracks/tiny.yaml"
    track.write_text(track.read_text().replace("source: digits,", "source: parquet, path: data/gone,"))
    with pytest.raises(BenchmarkError, match=r"how many images are trained on is not known: .*data/gone"):
        plan_run("tiny", 1)


def test_memory_is_that_of_the_process_that_works() -> None:
    little = in_a_process(lambda: 1)
    much = in_a_process(lambda: int(torch.ones(50_000_000).sum() > 0))
    assert little.value == much.value == 1
    assert 150e6 < much.memory - little.memory < 400e6


def test_a_process_that_fails_says_why() -> None:
    with pytest.raises(BenchmarkError, match="ZeroDivisionError: division by zero"):
        in_a_process(lambda: 1 / 0)
