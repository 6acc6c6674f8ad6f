"""The harness runs an attack component by component, resumes it, and evaluates again what comes back."""

from __future__ import annotations

import pyautoattack
import pytest
import torch
from tiny_models import Linear, Through

from benchmark.attacks import autoattack
from benchmark.evaluation.run_attack import run_attack, run_suite
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import AttackSpec


@pytest.fixture
def model(model) -> Linear:
    return model.eval().requires_grad_(False)


@pytest.mark.slow
def test_autoattack_by_components_is_the_authors_evaluation(model, images, labels, tmp_path) -> None:
    """The harness runs the four components one by one; the package runs them in its own loop: the same verdicts."""
    eps = float(model.radius(images, labels, "Linf").median())
    spec = AttackSpec(attack="autoattack", norm="Linf", eps=eps)
    package = pyautoattack.AutoAttack(model, norm="Linf", eps=eps, seed=0)
    package.apgd_targeted.n_target_classes = package.fab.n_target_classes = 5
    expected, _ = package.run_standard_evaluation(images, labels, batch_size=5)
    state, after = run_attack(model, images, labels, spec, batch_size=5, checkpoint=tmp_path / "s", engine="reference")
    assert state.engine == "reference"
    assert torch.equal(after.correct, model(expected).argmax(1) == labels)
    assert 0 < int(after.correct.sum()) < len(labels)
    assert torch.equal(state.robust, after.correct)


@pytest.mark.slow
def test_an_attack_resumes_from_the_images_already_done(model, images, labels, tmp_path, monkeypatch) -> None:
    """Stopped after any batch, the rest gives the same adversarial images and runs no batch twice."""
    images, labels = images[:9], labels[:9]
    monkeypatch.setattr(autoattack, "components", ("apgd-ce", "apgd-t"))  # the others take seconds a batch
    monkeypatch.delattr(autoattack, "flags")
    spec = AttackSpec(attack="autoattack", norm="L2", eps=float(model.radius(images, labels, "L2").median()))
    calls, original, stop_at = [], autoattack.attack, 0

    def stopping(*arguments, **options):
        calls.append(options["component"])
        if len(calls) == stop_at:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    def run(name: str):
        calls.clear()
        return run_attack(model, images, labels, spec, batch_size=5, checkpoint=tmp_path / name)[0]

    monkeypatch.setattr(autoattack, "attack", stopping)
    whole = run("whole")
    total = len(calls)
    for place in range(1, total + 1):
        stop_at = place
        with pytest.raises(KeyboardInterrupt):
            run(str(place))
        stop_at = 0
        resumed = run(str(place))
        assert len(calls) == total - (place - 1)
        assert torch.equal(resumed.adversarial, whole.adversarial)
        assert resumed.remaining == whole.remaining


def test_the_harness_hands_on_engine_slots_and_the_images_numbers(model, images, labels, tmp_path, monkeypatch) -> None:
    """Numbers in the whole set, which the random streams are drawn by, not places in the batch."""
    labels[3] = (labels[3] + 1) % 6  # wrong when clean, as is the last: not attacked
    calls = []

    def noting(model, images, labels, threat, *, seed, component, engine, indices, slots, wide, notes):
        calls.append((component, engine, indices, slots, wide))
        return images

    monkeypatch.setattr(autoattack, "attack", noting)
    spec = AttackSpec(attack="autoattack", norm="L2", eps=0.1)
    options = {"batch_size": 6, "checkpoint": tmp_path / "state"}
    state, _ = run_attack(model, images, labels, spec, engine="fast", **options)
    first, rest = [0, 1, 2, 4, 5, 6], [7, 8, 9, 10]
    assert calls == [(name, "fast", part, 6, 0) for name in autoattack.components for part in (first, rest)]
    assert state.engine == "fast"
    assert run_attack(model, images, labels, spec, engine="fast", **options)[0].engine == "fast"
    with pytest.raises(BenchmarkError, match="was begun by the fast engine; delete it to attack by reference"):
        run_attack(model, images, labels, spec, engine="reference", **options)
    plain = AttackSpec(attack="fgsm", norm="L2", eps=0.1)
    assert run_attack(model, images, labels, plain, batch_size=9)[0].engine is None


def test_an_image_is_evaluated_in_the_batch_of_the_final_verdict(model, images, labels, monkeypatch) -> None:
    """A model that rounds otherwise in a batch with fewer images must not lose an image here and keep it there."""
    rounding = Through(model, lambda x: x if len(x) == 12 else 1 - x)
    monkeypatch.setattr(autoattack, "attack", lambda m, x, *a, **k: x.clone())
    spec = AttackSpec(attack="autoattack", norm="L2", eps=0.1)
    state, after = run_attack(rounding, images, labels, spec, batch_size=12)
    assert state.robust.tolist() == after.correct.tolist() == [True] * 11 + [False]


def test_images_attacked_together_as_on_a_gpu_fare_the_same(model, images, labels, tmp_path) -> None:
    """What the fast engine finds for an image depends on no other image; the model is asked about more at a time."""
    images, labels = images.repeat(2, 1, 1, 1), labels.repeat(2)
    spec, asked = AttackSpec(attack="apgd", norm="L2", eps=0.02), []
    noting, runs = Through(model, lambda x: asked.append(len(x))), []
    for together in (None, 64):
        options = {"batch_size": 8, "folder": tmp_path / str(together), "engine": "fast", "report": lambda _: None}
        asked.clear()
        runs.append(next(run_suite(noting, images, labels, [spec], together=together, **options)))
        assert (max(asked) > 16) == bool(together)
    (_, apart, before), (_, state, after) = runs
    assert torch.equal(apart.adversarial, state.adversarial)
    assert apart.remaining == state.remaining
    assert 0 < int(after.correct.sum()) < 22, "some are broken, some are not"
    assert torch.equal(before.margin, after.margin)
    assert [path.name for path in (tmp_path / "64").iterdir()] == [f"{spec.id}@0-24.safetensors"]
