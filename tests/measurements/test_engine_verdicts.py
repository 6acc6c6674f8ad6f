"""What measurements/engine_verdicts.py concludes from verdicts, when it computes again, and the models it runs on."""

from __future__ import annotations

import pytest
import torch

from benchmark.runtime import files
from benchmark.specs import tracks
from measurements import engine_models, engine_verdicts
from measurements.engine_verdicts import THREATS, Compared, Run, criteria


def verdict(*broken: int) -> list[int]:
    return [int(image not in broken) for image in range(100)]


NONE, ONE, TWO, THREE = verdict(), verdict(0), verdict(0, 1), verdict(0, 1, 2)


def alike(models: int = 8) -> list[Compared]:
    """Every engine and seed breaks image 0 alone."""
    verdicts = {engine: [ONE] * 3 for engine in engine_verdicts.ENGINES}
    return [Compared(f"model{m}", threat, 100, dict(verdicts)) for m in range(models) for threat in THREATS]


def unmet(compared: list[Compared]) -> list[int]:
    return [number for number, (ok, _) in enumerate(criteria(compared, 3, 100)) if not ok]


@pytest.mark.parametrize(
    ("engine", "verdicts", "numbers"),
    [
        ("fast", [ONE, NONE, ONE], [0]),  # one image more robust on average
        ("fast", [verdict(0, 7), ONE, ONE], []),
        ("reference", [TWO] * 3, [0]),  # the most robust seeds may differ by one image
        ("reference", [THREE] * 3, [0, 1]),
        ("reference", [THREE, ONE, THREE], [0]),  # its worst seed counts
    ],
)
def test_one_model_decides(engine, verdicts, numbers) -> None:
    compared = alike()
    compared[3].verdicts[engine] = verdicts
    assert unmet(compared) == numbers
    lower = "fast" if verdicts[1] == NONE or engine == "reference" else "reference"
    assert {under for *_, under in compared[3].differing()} == {lower}


def test_equal_verdicts_of_enough_models_meet_every_criterion_and_agreement_below_99_in_100_does_not() -> None:
    assert (unmet(alike()), unmet(alike(7))) == ([], [4])
    compared = alike()
    for each in compared:
        each.verdicts["fast"] = [TWO] * 3  # 99 of 100 exactly
    assert unmet(compared) == []
    compared[0].verdicts["fast"] = [TWO, TWO, THREE]
    assert unmet(compared) == [2]


def test_a_run_is_kept_until_what_it_depends_on_changes(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(engine_verdicts, "KEPT", tmp_path)
    weights, run = tmp_path / "cnn-robust.safetensors", Run("cnn-robust", "L2", 0.5, "fast", 1, 100)
    weights.write_bytes(b"weights")
    assert run.kept() is None
    content = {"inputs": run.inputs(), "robust": [1]}
    files.write_json(run.path, content)
    assert run.kept() == content
    weights.write_bytes(b"others")
    assert run.kept() is None


@pytest.mark.parametrize("architecture", engine_models.ARCHITECTURES)
def test_each_model_makes_logits_whose_gradients_reach_all_parameters(architecture) -> None:
    torch.manual_seed(0)
    data = tracks.load("digits").data
    model = engine_models.build(architecture, data).train()
    logits = model(torch.rand(6, *data.shape))
    assert logits.shape == (6, data.classes)
    logits.square().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())
