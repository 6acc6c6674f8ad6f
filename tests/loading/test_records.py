"""Records refuse what they do not know, and errors say what is wrong in one line."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
import yaml
from pydantic import ValidationError
from tiny_models import Linear, grey_images
from torch import nn

from benchmark.evaluation.division import inspect
from benchmark.loading import methods, submissions, tracks
from benchmark.loading.rows import entry, entry_of_row
from benchmark.loading.run_settings import run_settings
from benchmark.runtime import files, yaml_file
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.base import to_json
from benchmark.specs.submission import Submission
from benchmark.specs.threat import AttackSpec, ThreatModel
from benchmark.specs.track import Track


def test_linf_radius_in_the_wrong_unit_is_refused_with_a_hint() -> None:
    with pytest.raises(ValidationError, match=r"pixels in \[0, 1\]"):
        ThreatModel(norm="Linf", eps=8)
    with pytest.raises(ValidationError):
        ThreatModel(norm="L2", eps=-0.1)
    assert ThreatModel(norm="L2", eps=3.0).label == "L2 3"


def test_records_are_frozen_and_round_trip() -> None:
    track = tracks.load("digits")
    with pytest.raises(ValidationError):
        track.version = 2
    assert Track.model_validate_json(to_json(track)) == track


def test_an_attack_twice_in_a_track_is_refused() -> None:
    track = tracks.load("digits").model_dump()
    track["suites"]["more"] = [AttackSpec(attack="fgsm", norm="Linf", eps=0.15).model_dump()]
    with pytest.raises(ValidationError, match=r"fgsm-Linf-0\.15 stands twice"):
        Track.model_validate(track)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tracks.load("digit"), "unknown track 'digit'; did you mean 'digits'?"),
        (lambda: submissions.load("Wong2020Fat"), "unknown submission 'Wong2020Fat'; did you mean 'Wong2020Fast'?"),
        (lambda: entry("digits", "Wong2020Fast", "lin"), "has no variant 'lin'; did you mean 'linf'?"),
        (lambda: entry_of_row("digits", "Wong2020Fast"), "use <submission>-<variant>; did you mean"),
    ],
)
def test_unknown_names_suggest_the_near_miss(call, message) -> None:
    with pytest.raises(BenchmarkError) as raised:
        call()
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_unknown_key_in_a_track_is_refused(tmp_path, monkeypatch) -> None:
    text = (tracks.FOLDER / "digits.yaml").read_text()
    (tmp_path / "digits.yaml").write_text(text.replace("certified_radii", "certified_radius"))
    monkeypatch.setattr(tracks, "FOLDER", tmp_path)
    with pytest.raises(BenchmarkError, match="unknown key 'certified_radius'; did you mean 'certified_radii'"):
        tracks.load("digits")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("sigma: 0", "smoothing.sigma: Input should be greater than 0"),
        ("sigma: inf", "smoothing.sigma: Input should be a finite number"),
        ("alpha: 1", "smoothing.alpha: Input should be less than 1"),
        ("n: 0", "smoothing.n: Input should be greater than 0"),
        ("n: 20", "smoothing: n 20 cannot be halved for 6 looks"),
        ("sigmas: 1", "unknown key 'smoothing.sigmas'; did you mean 'sigma'?"),
    ],
)
def test_bad_smoothing_rules_get_one_clear_line(tmp_path, monkeypatch, change, message) -> None:
    key, _, value = change.partition(": ")
    content = yaml_file.read_yaml(tracks.FOLDER / "digits.yaml")
    content["smoothing"][key] = float(value)
    (tmp_path / "digits.yaml").write_text(yaml.safe_dump(content))
    monkeypatch.setattr(tracks, "FOLDER", tmp_path)
    with pytest.raises(BenchmarkError) as raised:
        tracks.load("digits")
    assert message in str(raised.value)


def test_every_row_of_a_track_is_smoothed_when_the_track_says_so() -> None:
    for name in ("Wong2020Fast-linf", "Havens2024LoFAST-mean_pool"):
        row = entry_of_row("digits", name)
        assert row.stages()[-3:] == ["smooth", "pictures", "collect"]
        without = dataclasses.replace(row, track=row.track.model_copy(update={"smoothing": None}))
        assert "smooth" not in without.stages()
        assert Path("benchmark/certificates/smoothing.py") in row.code("smooth")
        assert Path("benchmark/certificates/smoothing.py") not in row.code("train")


def write_submission(folder: Path, change: tuple[str, str] = ("", ""), method: str | None = None) -> None:
    source = submissions.FOLDER / "Wong2020Fast"
    text = (source / "submission.yaml").read_text()
    assert change[0] in text
    target = folder / "Wong2020Fast"
    target.mkdir(parents=True)
    (target / "submission.yaml").write_text(text.replace(*change) if change[0] else text)
    (target / "method.py").write_text(method or (source / "method.py").read_text())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("learning_rate:", "learning_rat:"),
            "unknown key 'variants.linf.tracks.digits.training.learning_rat'; did you mean 'learning_rate'?",
        ),
        (("summary:", "sumary:"), "unknown key 'sumary'; did you mean 'summary'?"),
        (("eps: 0.15, p", "eps: 8, p"), "pixels in [0, 1]"),
        (
            ("objective: adversarial", "objective: adversary"),
            "no training file named 'adversary'; did you mean 'adversarial'?",
        ),
        (("attack: fgsm", "attack: fgms"), "no attacks file named 'fgms'; did you mean 'fgsm'?"),
        (("      digits:", "      digit:"), "no tracks file named 'digit'; did you mean 'digits'?"),
        (("epochs: 30", "epochs: many"), "variants.linf.tracks.digits.training.epochs"),
        (("name: Wong2020Fast", "name: Wong2021Fast"), "must match its folder"),
        (("variants:", "variants: [}"), "not valid YAML"),
        (("epochs: 30", "epochs: 30\n          epochs: 31"), "the key 'epochs' stands twice"),
        (
            ("objective: adversarial", "objective: loop"),
            "no training file named 'loop'; known: adversarial, margin, standard",
        ),
    ],
)
def test_bad_submissions_get_one_clear_line(tmp_path, monkeypatch, change, message) -> None:
    write_submission(tmp_path, change)
    monkeypatch.setattr(submissions, "FOLDER", tmp_path)
    with pytest.raises(BenchmarkError) as raised:
        submissions.load("Wong2020Fast")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("import nothing_like_this", "does not import: ModuleNotFoundError"),
        ("x = 1", "must define build"),
        ("def build(data): pass", "build failed"),
        ("def build(data, **o):\n raise RuntimeError('boom')", "method.py, line 2: build failed: RuntimeError: boom"),
        (
            "from torch import nn\ndef build(data, **o): return nn.Linear(3, 10)",
            "the model fails on two images: RuntimeError",
        ),
        ("def build(data, **o): return 3", "returned int, not a torch module"),
        ("from torch import nn\ndef build(data, **o): return nn.Flatten()", r"give (2, 64); logits of shape (2, 10)"),
        (
            "from torch import nn\nclass M(nn.Module):\n def forward(self, x): return x.flatten(1)[:, :10] / 0\n"
            "def build(data, **o): return M()",
            "not finite",
        ),
    ],
)
def test_bad_methods_get_one_clear_line(tmp_path, monkeypatch, method, message) -> None:
    write_submission(tmp_path, method=method)
    monkeypatch.setattr(submissions, "FOLDER", tmp_path)
    submission = submissions.load("Wong2020Fast")
    with pytest.raises(BenchmarkError) as raised:
        methods.build(submission, "linf", tracks.load("digits"))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_syntax_error_names_its_line(tmp_path) -> None:
    from benchmark.runtime import code

    path = tmp_path / "method.py"
    path.write_text("x = 1\ndef build(:\n")
    with pytest.raises(BenchmarkError, match=r"method\.py, line 2: invalid syntax"):
        code.closure(path)


class Noisy(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 0.1 * torch.randn(len(x), self.weight.shape[0])


class Rounded(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.round(x * 8) / 8)


class Detached(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.detach())


class Searching(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            probe = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(super().forward(probe).sum(), probe)
        return super().forward(x) + 0 * gradient.sum()


class Counting(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x)


def declared(division: str) -> Submission:
    return submissions.load("Wong2020Fast").model_copy(update={"division": division})


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Noisy(), "random"),
        (Rounded(), "no usable input gradient on 16 of 16"),
        (Detached(), "no usable input gradient on 16 of 16"),
        (Searching(), "dynamic defense"),
        (Counting(), "changes its own weights or buffers"),
    ],
)
def test_closed_division_refuses_with_the_reason(model, reason) -> None:
    model.eval().requires_grad_(False)
    images = grey_images()
    labels = torch.zeros(16, dtype=torch.long)
    with pytest.raises(BenchmarkError, match="refused in the closed division") as raised:
        inspect(model, images, labels, declared("closed"))
    assert reason in str(raised.value)
    facts = inspect(model, images, labels, declared("open"))
    assert facts.division == "open"
    assert any(reason in r for r in facts.division_reasons)


def test_a_plain_model_is_closed_and_counted() -> None:
    model = Linear().eval().requires_grad_(False)
    facts = inspect(model, grey_images(), torch.zeros(16, dtype=torch.long), declared("closed"))
    assert facts.division == "closed"
    assert facts.parameters == 4 * 36 + 4
    assert facts.flops == 2 * 4 * 36


def test_a_full_disk_keeps_the_old_file_and_says_so(tmp_path, monkeypatch, capsys) -> None:
    from benchmark.runtime import errors

    path = tmp_path / "results.json"
    files.write(path, "old")

    def full(*_) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(SystemExit, match=r"the disk is full while writing .*results\.json"):
        errors.run(lambda: files.write(path, "new"))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_unknown_keys_in_params_are_refused(tmp_path, monkeypatch) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("train: {device: cpu, precison: 16-mixed}\n")
    monkeypatch.setattr("benchmark.loading.run_settings.PARAMS", path)
    with pytest.raises(BenchmarkError, match=r"unknown key 'train\.precison'; did you mean 'precision'"):
        run_settings()


def test_every_layer_of_a_submission_is_torch(monkeypatch) -> None:
    for name in submissions.names():
        submission = submissions.load(name)
        for variant in (v for v, found in submission.variants.items() if "digits" in found.tracks):
            assert isinstance(methods.build(submission, variant, tracks.load("digits")), nn.Module)
