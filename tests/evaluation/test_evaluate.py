"""`benchmark.evaluate`: one call on one's own model, its report, its limit of time, and what it goes on from."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from tiny_models import Linear
from torch import nn

import benchmark
from benchmark.attacks.engine import square
from benchmark.evaluation import evaluate as module
from benchmark.evaluation.auto_attack import auto_attack
from benchmark.evaluation.evaluate import evaluate
from benchmark.evaluation.run_attack import Attack
from benchmark.runtime.errors import BenchmarkError


@pytest.fixture(autouse=True)
def _short(monkeypatch) -> None:
    monkeypatch.setattr(square, "QUERIES", 50)


def test_the_numbers_are_those_of_auto_attack_and_the_report_says_them(linear, tmp_path) -> None:
    model, images, labels = linear
    eps = float(model.radius(images, labels, "L2")[:11].median())
    report = benchmark.evaluate(model, images, labels, attacks=[("Linf", "2/255"), ("l2", eps)], batch_size=5)
    for one, (norm, size) in zip(report.attacks, [("Linf", 2 / 255), ("L2", eps)], strict=True):
        plain = auto_attack(model, images, labels, norm=norm, eps=size, batch_size=5)
        assert torch.equal(one.robust, plain.robust)
        assert torch.equal(one.adversarial, plain.adversarial)
        assert one.remaining == plain.remaining
        assert one.decided.all()
    assert report.numbers["clean"].count == 11
    assert report.numbers[f"AutoAttack L2 {eps:g}"].count == int(report.attacks[1].robust.sum())
    assert "clean" in str(report)
    assert f"{100 * 11 / 12:.1f}%" in str(report)
    page = report.save(tmp_path / "report.html").read_text()
    assert "<svg" in page
    assert "11 of 12" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    stored = json.loads(report.save(tmp_path / "report.json").read_text())
    assert stored["numbers"]["clean"]["count"] == 11
    assert stored["images"]["label"] == labels.tolist()
    table = pd.read_csv(report.save(tmp_path / "report.csv"))
    assert table["clean"].tolist() == report.clean.tolist()
    kept = load_file(report.save(tmp_path / "report.safetensors"))
    assert torch.equal(kept[f"L2 {eps:g}"], report.attacks[1].adversarial)
    with pytest.raises(BenchmarkError, match=r"saved as \.html, \.json, \.csv or \.safetensors"):
        report.save(tmp_path / "report.pdf")


def test_a_track_by_name_brings_its_images_radii_and_rules(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # outside of a checkout
    torch.manual_seed(0)
    report = evaluate(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), "digits", attacks=[], certificate=True)
    assert len(report.labels) == 100
    assert report.radii == (0.1, 0.25, 0.5)
    assert report.attacks == ()
    assert [name for name in report.numbers] == ["clean", "certified L2 0.1", "certified L2 0.25", "certified L2 0.5"]
    assert "Handwritten digits" in str(report)
    assert module._of_track(module._track("digits")) == [("Linf", 0.15), ("L2", 0.5), ("L2", 1.0)]


def test_certified_radii_are_the_exact_ones_of_a_linear_network_and_below(linear) -> None:
    model, images, labels = linear
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 6))
    with torch.no_grad():
        network[1].weight.copy_(model.weight)
        network[1].bias.copy_(model.bias)
    exact = model.radius(images, labels, "L2")
    report = evaluate(network, images, labels, attacks=[("L2", 0.05)], certificate=True, sigma=0.1)
    radii = report.certified_l2
    assert radii is not None
    assert (radii[:11] <= exact[:11]).all()
    assert (radii[:11] > 0).any()
    assert radii[11] == 0
    assert report.guarantee
    assert report.smoothed is not None
    assert report.smoothed.done == 12
    assert "smoothed clean" in report.numbers
    with pytest.raises(BenchmarkError, match="no certificate for this model: "):
        evaluate(model, images, labels, attacks=[], certificate=True)
    with pytest.raises(BenchmarkError, match="unknown certificate 'lipshitz'; did you mean 'lipschitz'"):
        evaluate(network, images, labels, attacks=[], certificate="lipshitz")


def test_a_certificate_that_an_attack_refutes_is_never_reported(linear, monkeypatch) -> None:
    _, images, labels = linear
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 6))
    labels = network(images).argmax(1)
    monkeypatch.setattr(module, "certified_radii", lambda *_: torch.full((12,), 3.0, dtype=torch.float64))
    with pytest.raises(BenchmarkError, match=r"is certified at l2 3, but AutoAttack broke it within"):
        evaluate(network, images, labels, attacks=[("L2", 1.0)], certificate="lipschitz")


def test_what_is_undecided_when_the_time_is_up_is_not_robust_and_is_said(linear, monkeypatch) -> None:
    """The clock stands still until the second batch is attacked."""
    model, images, labels = linear
    calls = []
    on = Attack.on

    def slow(self, images, labels, checkpoint=None, first=0):
        calls.append(first)
        return on(self, images, labels, checkpoint, first)

    monkeypatch.setattr(Attack, "on", slow)
    monkeypatch.setattr(module._Clock, "is_up", property(lambda _: len(calls) > 1))
    report = evaluate(model, images, labels, attacks=[("Linf", 0.02)], batch_size=8, minutes=10)
    whole = auto_attack(model, images, labels, norm="Linf", eps=0.02, batch_size=8)
    one = report.attacks[0]
    assert torch.equal(one.robust[:8], whole.robust[:8])
    assert not one.robust[8:].any()
    assert one.decided.tolist() == [True] * 8 + [False] * 3 + [True]  # wrong when clean: decided
    assert report.undecided == {"AutoAttack Linf 0.02": 3}
    assert any("3 of 12 images were undecided" in words for words in report.warnings)
    assert report.images["AutoAttack Linf 0.02"][8:].tolist() == [None, None, None, False]
    with pytest.raises(BenchmarkError, match="minutes -1 is no limit"):
        evaluate(model, images, labels, minutes=-1)


def test_a_call_that_was_stopped_goes_on_where_it_was(linear, tmp_path, monkeypatch) -> None:
    model, images, labels = linear
    options = {"attacks": [("Linf", 0.02)], "batch_size": 4, "folder": tmp_path / "kept"}
    on, begun = Attack.on, []

    def stops(self, images, labels, checkpoint, first):
        if first == 8:
            raise KeyboardInterrupt
        return on(self, images, labels, checkpoint, first)

    monkeypatch.setattr(Attack, "on", stops)
    with pytest.raises(KeyboardInterrupt):
        evaluate(model, images, labels, **options)
    monkeypatch.setattr(Attack, "on", on)
    run = Attack._run
    monkeypatch.setattr(Attack, "_run", lambda self, *a: (begun.append(a[-1]), run(self, *a))[1])
    report = evaluate(model, images, labels, **options)
    assert {*begun} == {8}, "what was done is not done again"
    assert torch.equal(
        report.attacks[0].robust, auto_attack(model, images, labels, norm="Linf", eps=0.02, batch_size=4).robust
    )
    with pytest.raises(BenchmarkError, match="holds parts of another evaluation"):
        evaluate(Linear(classes=6, seed=5), images, labels, **options)


def test_logits_are_taken_from_what_a_model_returns(linear) -> None:
    model, images, labels = linear

    class Output(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: torch.Tensor) -> SimpleNamespace:
            return SimpleNamespace(logits=self.inner(x))

    with pytest.raises(BenchmarkError, match=r"give `logits=lambda output: output\.logits`"):
        evaluate(Output(), images, labels, attacks=[])
    report = evaluate(Output(), images, labels, attacks=[("Linf", 0.02)], logits=lambda output: output.logits)
    assert torch.equal(report.attacks[0].robust, auto_attack(model, images, labels, norm="Linf", eps=0.02).robust)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"labels": None}, "give `labels`"),
        ({"images": "digits"}, "a track has labels of its own"),
        ({"images": "digitz", "labels": None}, "unknown track 'digitz'; did you mean 'digits'"),
        ({"attacks": [("L3", 0.1)]}, "unknown norm 'L3'"),
        ({"attacks": [("L2", 128)]}, "L2 eps 128 is above 6"),
        ({"engine": "quick"}, "unknown engine 'quick'"),
        ({"images": torch.zeros(0, 1, 6, 6), "labels": torch.zeros(0, dtype=torch.long)}, "there is no image"),
    ],
)
def test_bad_input_is_one_line(linear, given, words) -> None:
    model, images, labels = linear
    options = {"images": images, "labels": labels} | given
    with pytest.raises(BenchmarkError, match=words):
        evaluate(model, options.pop("images"), options.pop("labels"), **options)
