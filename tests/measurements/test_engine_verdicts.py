"""What measurements/engine_verdicts.py concludes from verdicts, when it computes anew, and the models it runs on."""

from __future__ import annotations

import pytest
import torch

from benchmark.runtime import files
from benchmark.specs import tracks
from measurements import engine_models, engine_verdicts
from measurements.engine_verdicts import THREATS, Compared, Run, criteria


def verdict(*broken: int) -> list[int]:
    return [int(image not in broken) for image in range(100)]


def alike(models: int = 8) -> list[Compared]:
    """Every engine and seed breaks image 0 alone."""
    verdicts = {engine: [verdict(0)] * 3 for engine in engine_verdicts.ENGINES}
    return [Compared(f"model{m}", threat, 100, dict(verdicts)) for m in range(models) for threat in THREATS]


def met(compared: list[Compared]) -> list[bool]:
    return [ok for ok, _ in criteria(compared, 3, 100)]


def test_equal_verdicts_meet_every_criterion() -> None:
    assert met(alike()) == [True] * 5
    assert met(alike(7)) == [True, True, True, True, False], "too few models"


ONE, TWO, THREE = verdict(0), verdict(0, 1), verdict(0, 1, 2)


@pytest.mark.parametrize(
    ("engine", "verdicts", "unmet"),
    [
        ("fast", [ONE, verdict(), ONE], [0]),  # one image more robust on average
        ("fast", [verdict(0, 7), ONE, ONE], []),
        ("reference", [TWO] * 3, [0]),  # the most robust seeds may differ by one image
        ("reference", [THREE] * 3, [0, 1]),
        ("reference", [THREE, ONE, THREE], [0]),  # its worst seed counts
    ],
)
def test_one_model_decides(engine, verdicts, unmet) -> None:
    compared = alike()
    compared[3].verdicts[engine] = verdicts
    assert [number for number, ok in enumerate(met(compared)) if not ok] == unmet
    stands = "fast" if verdicts[1] == verdict() or engine == "reference" else "reference"
    assert {under for *_, under in compared[3].differing()} == {stands}


def test_agreement_below_99_in_100_is_not_met() -> None:
    compared = alike()
    for c in compared:
        c.verdicts["fast"] = [TWO] * 3  # 99 of 100 exactly
    assert met(compared) == [True] * 5
    compared[0].verdicts["fast"] = [TWO, TWO, THREE]
    assert met(compared) == [True, True, False, True, True]


def test_a_run_is_kept_until_what_it_depends_on_changes(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(engine_verdicts, "KEPT", tmp_path)
    weights, run = tmp_path / "cnn-robust.safetensors", Run("cnn-robust", "L2", 0.5, "fast", 1, 100)
    weights.write_bytes(b"weights")
    assert run.kept() is None
    files.write_json(run.path, {"inputs": run.inputs(), "robust": [1]})
    assert run.kept() == {"inputs": run.inputs(), "robust": [1]}
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
