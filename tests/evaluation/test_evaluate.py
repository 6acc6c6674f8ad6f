"""`benchmark.evaluate`: one call on a user's model, its report, its time limit, and how it resumes."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from tiny_models import Linear, Through
from torch import nn

import benchmark
from benchmark.certificates.smoothing import smooth
from benchmark.evaluation import evaluate as module
from benchmark.evaluation.auto_attack import auto_attack
from benchmark.evaluation.evaluate import evaluate
from benchmark.evaluation.run_attack import Attack
from benchmark.runtime.errors import BenchmarkError


@pytest.mark.slow
def test_the_numbers_are_those_of_auto_attack_and_the_report_has_them(model, images, labels, tmp_path) -> None:
    eps = float(model.radius(images, labels, "L2")[:11].median())
    report = benchmark.evaluate(model, images, labels, attacks=[("Linf", "2/255"), ("l2", eps)], batch_size=5)
    for attack, (norm, size) in zip(report.attacks, [("Linf", 2 / 255), ("L2", eps)], strict=True):
        plain = auto_attack(model, images, labels, norm=norm, eps=size, batch_size=5)
        assert torch.equal(attack.robust, plain.robust)
        assert torch.equal(attack.adversarial, plain.adversarial)
        assert attack.remaining == plain.remaining
        assert attack.decided.all()
    assert report.numbers["clean"].count == 11
    assert report.numbers[f"AutoAttack L2 {eps:g}"].count == int(report.attacks[1].robust.sum())
    assert f"{100 * 11 / 12:.1f}%" in next(line for line in str(report).splitlines() if line.startswith("clean"))
    page = report.save(tmp_path / "report.html").read_text()
    assert "<svg" in page
    assert "11 of 12" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    stored = json.loads(report.save(tmp_path / "report.json").read_text())
    assert stored["numbers"]["clean"]["count"] == 11
    assert stored["images"]["label"] == labels.tolist()
    assert pd.read_csv(report.save(tmp_path / "report.csv"))["clean"].tolist() == report.clean.tolist()
    tensors = load_file(report.save(tmp_path / "report.safetensors"))
    assert torch.equal(tensors[f"L2 {eps:g}"], report.attacks[1].adversarial)
    with pytest.raises(BenchmarkError, match=r"saved as \.html, \.json, \.csv or \.safetensors"):
        report.save(tmp_path / "report.pdf")


def test_a_track_by_name_brings_its_images_radii_and_rules(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # outside of a checkout
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    report = evaluate(network, "digits", attacks=[], certificate=True)
    assert (len(report.labels), report.radii, report.attacks) == (100, (0.1, 0.25, 0.5), ())
    assert [*report.numbers] == ["clean", "certified L2 0.1", "certified L2 0.25", "certified L2 0.5"]
    assert "Handwritten digits" in str(report)
    with pytest.raises(BenchmarkError, match=r"cannot write into the folder /proc \("):
        report.save("/proc/x.html")
    counted = evaluate(network, "digits", count=5)
    assert [attack.threat.label for attack in counted.attacks] == ["Linf 0.15", "L2 0.5", "L2 1"]
    assert (len(counted.labels), counted.radii) == (5, (0.1, 0.25, 0.5))


def test_certified_radii_are_the_exact_ones_of_a_linear_network_and_below(model, images, labels, monkeypatch) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 6))
    with torch.no_grad():
        network[1].weight.copy_(model.weight)
        network[1].bias.copy_(model.bias)
    exact = model.radius(images, labels, "L2")
    report = evaluate(network, images, labels, attacks=[("L2", 0.05)], certificate=True, sigma=0.1)
    radii = report.certified.radii
    assert (radii[:11] <= exact[:11]).all()
    assert (radii[:11] > 0).any()
    assert radii[11] == 0
    assert report.certified.guarantee
    assert report.smoothed.done == 12
    assert "smoothed clean" in report.numbers
    monkeypatch.setattr(module, "_attacked", lambda *_: pytest.fail("attacked"))
    with pytest.raises(BenchmarkError, match="no certificate for this model: "):
        evaluate(model, images, labels, certificate=True)
    network.register_forward_pre_hook(lambda layer, given: ((given[0] * 255).round() / 255,))  # nothing on 8-bit images
    other = nn.Sequential(nn.Flatten(), nn.Linear(36, 6))
    other[1].extra_repr = str  # a method that is not the type's
    for odd, place in ((network, "it"), (other, "1")):
        with pytest.raises(BenchmarkError, match=f"this model: {place} has hooks or methods of its own"):
            evaluate(odd, images, labels, certificate=True)
    with pytest.raises(BenchmarkError, match="unknown certificate 'lipshitz'; did you mean 'lipschitz'"):
        evaluate(network, images, labels, attacks=[], certificate="lipshitz")


def test_a_certificate_that_an_attack_refutes_is_never_reported(model, images, monkeypatch) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 6))
    labels = network(images).argmax(1)
    monkeypatch.setattr(module, "certified_radii", lambda *_: torch.full((12,), 3.0, dtype=torch.float64))
    with pytest.raises(BenchmarkError, match=r"is certified at l2 3, but AutoAttack broke it within"):
        evaluate(network, images, labels, attacks=[("L2", 1.0)], certificate="lipschitz")


def test_what_is_undecided_when_the_time_is_up_is_not_robust_and_is_said(model, images, labels, monkeypatch) -> None:
    """The clock stands still until the second batch is attacked."""
    calls, on = [], Attack.on

    def slow(self, images, labels, checkpoint=None, first=0):
        calls.append(first)
        return on(self, images, labels, checkpoint, first)

    monkeypatch.setattr(Attack, "on", slow)
    monkeypatch.setattr(module._Clock, "is_up", property(lambda _: len(calls) > 1))
    report = evaluate(model, images, labels, attacks=[("Linf", 0.02)], batch_size=8, minutes=10)
    whole = auto_attack(model, images, labels, norm="Linf", eps=0.02, batch_size=8)
    attack = report.attacks[0]
    assert torch.equal(attack.robust[:8], whole.robust[:8])
    assert not attack.robust[8:].any()
    assert attack.decided.tolist() == [True] * 8 + [False] * 3 + [True]  # wrong when clean: decided
    assert report.undecided == {"AutoAttack Linf 0.02": 3}
    assert any("3 of 12 images were undecided" in words for words in report.warnings)
    assert report.images["AutoAttack Linf 0.02"][8:].tolist() == [None, None, None, False]
    calls.clear()
    lost = torch.cat((labels[:8], (model(images[8:]).argmax(1) + 1) % 6))  # the second batch is wrong when clean
    assert evaluate(model, images, lost, attacks=[("Linf", 0.02)], batch_size=8, minutes=10).attacks[0].decided.all()


def test_a_call_that_was_stopped_goes_on_where_it_was(model, images, labels, tmp_path, monkeypatch) -> None:
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
    run = Attack._attack
    monkeypatch.setattr(Attack, "_attack", lambda self, *a: (begun.append(a[-1]), run(self, *a))[1])
    report = evaluate(model, images, labels, **options)
    assert {*begun} == {8}, "what was done is not done again"
    plain = auto_attack(model, images, labels, norm="Linf", eps=0.02, batch_size=4)
    assert torch.equal(report.attacks[0].robust, plain.robust)
    alike = Through(model, after=lambda z, x: 2 * z)  # the same weights, other code
    for other, seed in ((Linear(classes=6, seed=5), 0), (model, 1), (alike, 0)):
        with pytest.raises(BenchmarkError, match="holds parts of another evaluation"):
            evaluate(other, images, labels, seed=seed, **options)


def test_smoothing_is_counted_at_the_radii_that_are_shown_and_time_that_is_up_is_said(images, monkeypatch) -> None:
    labels = torch.zeros(12, dtype=torch.long)
    sure = Through(nn.Flatten(), after=lambda z, x: 2 * torch.eye(6)[torch.zeros(len(x)).long()] + 0 * x.sum())
    report = evaluate(sure, images, labels, attacks=[], sigma=0.25)
    assert report.numbers["smoothed L2 0.5"].count == 12, "it is sampled as long as that radius wants"
    asked = []
    monkeypatch.setattr(module, "BLOCK", 4)
    monkeypatch.setattr(module, "smooth", lambda *a, **k: (asked.append(1), smooth(*a, **k))[1])
    monkeypatch.setattr(module._Clock, "is_up", property(lambda _: len(asked) > 1))
    late = evaluate(sure, images, labels, attacks=[], sigma=0.25, minutes=1)
    assert late.undecided["smoothed clean"] == 4
    assert "8 to 12 of 12: 4 undecided" in str(late)


def test_logits_are_taken_from_what_a_model_returns(model, images, labels) -> None:
    outputs = Through(model, after=lambda z, x: SimpleNamespace(logits=z))
    with pytest.raises(BenchmarkError, match=r"give `logits=lambda output: output\.logits`"):
        evaluate(outputs, images, labels, attacks=[])
    with pytest.raises(BenchmarkError, match="let it return logits"):
        evaluate(outputs, images, labels, logits=lambda output: (200 * output.logits).softmax(1))
    report = evaluate(outputs, images, labels, attacks=[("Linf", 0.02)], logits=lambda output: output.logits)
    assert torch.equal(report.attacks[0].robust, auto_attack(model, images, labels, norm="Linf", eps=0.02).robust)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"labels": None}, "and `labels`"),
        ({"images": "digits"}, "a track has labels of its own"),
        ({"images": "digitz", "labels": None}, "unknown track 'digitz'; did you mean 'digits'"),
        ({"attacks": ("Linf", 0.1)}, r"'Linf' is no attack; give pairs"),
        ({"attacks": [("L2", 0.1), ("l2", "25.5/255")]}, r"the attack L2 0\.1 stands twice"),
        ({"sigma": -1}, "sigma -1 is no deviation"),
        ({"count": 13}, "^count must be a whole number from 1 to 12, not 13$"),
        ({"sigma": "1/4"}, "sigma '1/4' is no deviation"),
        *(({"minutes": minutes}, f"minutes {minutes!r} is no limit") for minutes in ("ten", -1)),
        *(({"radii": radii}, f"^radii {radii[0]!r} is no radius") for radii in ([-1], ["a"])),
        *(({"radii": radii}, "^radii must be a list of numbers") for radii in (0.5, "0.5", torch.tensor(0.5))),
        *(({"attacks": [], "seed": seed}, "^seed must be a whole number") for seed in (0.5, -1)),
        *(({"folder": folder}, f"^folder '{folder}' cannot be written to") for folder in (__file__, 5)),
        ({"logits": 5}, "^logits is a int"),
        ({"images": torch.zeros(12, 1, 6, 6).numpy()}, r"^images are a ndarray; give a torch\.Tensor"),
        ({"engine": "quick"}, "unknown engine 'quick'"),
        ({"images": torch.zeros(0, 1, 6, 6), "labels": torch.zeros(0, dtype=torch.long)}, "there is no image"),
    ],
)
def test_bad_input_is_one_line(model, images, labels, given, words) -> None:
    options = {"images": images, "labels": labels} | given
    with pytest.raises(BenchmarkError, match=words):
        evaluate(model, options.pop("images"), options.pop("labels"), **options)
