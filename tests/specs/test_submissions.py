"""Submissions, methods, tracks and params.yaml: what is wrong with one is said in one line."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml
from stages import stage_code, stage_names
from torch import nn

from benchmark import protocol
from benchmark.runtime import yaml_file
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import methods, submissions, tracks
from benchmark.specs.rows import load_row
from benchmark.specs.run_settings import run_settings

ODD = (
    "from torch import nn\nclass M(nn.Sequential):\n def __init__(self): super().__init__(nn.Flatten(), nn.Linear(64, 10))\n"
    " def forward(self, x): {}\ndef build(data, **o): return M()"
)
NAME = "Wong2020Fast"


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A copy of a submission, the only one there is."""
    source, copy = submissions.FOLDER / NAME, tmp_path / NAME
    copy.mkdir()
    for name in ("submission.yaml", "method.py"):
        (copy / name).write_text((source / name).read_text())
    monkeypatch.setattr(submissions, "FOLDER", tmp_path)
    return copy


def refused(call, message: str) -> None:
    with pytest.raises(BenchmarkError) as raised:
        call()
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tracks.load("digit"), "unknown track 'digit'; did you mean 'digits'?"),
        (lambda: submissions.load("Wong2020Fat"), "unknown submission 'Wong2020Fat'; did you mean 'Wong2020Fast'?"),
        (lambda: load_row("digits", "Wong2020Fast-lin"), "has no variant 'lin'; did you mean 'linf'?"),
        (lambda: load_row("digits", "Wong2020Fast"), "use <submission>-<variant>; did you mean"),
    ],
)
def test_unknown_names_suggest_the_near_miss(call, message) -> None:
    refused(call, message)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("learning_rate:", "learning_rat:", "unknown key 'variants.linf.tracks.digits.training.learning_rat'; did you mean 'learning_rate'?"),
        ("summary:", "sumary:", "unknown key 'sumary'; did you mean 'summary'?"),
        ("eps: 0.15, p", "eps: 8, p", "pixels in [0, 1]"),
        ("objective: adversarial", "objective: adversary", "no training file named 'adversary'; did you mean 'adversarial'?"),
        ("attack: fgsm", "attack: fgms", "no attacks file named 'fgms'; did you mean 'fgsm'?"),
        ("      digits:", "      digit:", "no tracks file named 'digit'; did you mean 'digits'?"),
        ("epochs: 30", "epochs: many", "variants.linf.tracks.digits.training.epochs"),
        ("name: Wong2020Fast", "name: Wong2021Fast", "must match its folder"),
        ("variants:", "variants: [}", "not valid YAML"),
        ("epochs: 30", "epochs: 30\n          epochs: 31", "the key 'epochs' stands twice"),
        ("  linf:", "  v1.0:", "variant name 'v1.0' holds a dot, at which DVC splits names; write 'v1_0'"),
        ("  linf:", "  línf:", "use the letters a to z, digits and '_' only"),
        ("  linf:", f"  {'a' * 300}:", "has 300 characters; use 60 at most"),
        ("name: Wong2020Fast", f"name: {'W' * 300}", "at most 60 characters"),
        ("variants:", "variants:\n  Linf: {title: Other, tracks: {}}", "'Linf' differs from 'linf' in case only"),
        ("url: https:", "url: 'javascript:alert(1)' #", "paper.url: 'javascript:alert(1)' is no web address; write one that"),
        ("url: https:", "url: //", "is no web address"),
        ("variants:", "claims: [{track: digits, metric: clean, value: 50, source: none}]\nvariants:", "claims.0.value: 50 is no fraction from 0 to 1; write 0.5 for 50%"),
        ("variants:", "claims: [{track: digits, metric: clean, value: -0.5, source: none}]\nvariants:", "-0.5 is no fraction"),
        ("default: false", "default: [digit]", "default names digit, which is none of the variant's tracks: digits"),
        ("objective: adversarial", "objective: loop", "no training file named 'loop'"),
    ],
)  # fmt: skip
def test_bad_submissions_get_one_clear_line(folder, old, new, message) -> None:
    path = folder / "submission.yaml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    refused(lambda: submissions.load(NAME), message)


def test_a_submission_that_is_not_utf_8_gets_one_line(folder) -> None:
    file = folder / "submission.yaml"
    file.write_bytes(file.read_bytes().replace(b"summary: ", b"summary: na\xefve "))
    with pytest.raises(BenchmarkError, match=r"submission\.yaml: not UTF-8 \(byte \d+\); save it as UTF-8"):
        submissions.load(NAME)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("import nothing_like_this", "does not import: ModuleNotFoundError"),
        ("x = 1", "must define build"),
        ("def build(data): pass", "build failed"),
        ("def build(data, **o):\n raise RuntimeError('boom')", "method.py, line 2: build failed: RuntimeError: boom"),
        ("from torch import nn\ndef build(data, **o): return nn.Linear(3, 10)", "the model fails on two images: RuntimeError"),
        ("def build(data, **o): return 3", "returned int, not a torch module"),
        ("from torch import nn\ndef build(data, **o): return nn.Flatten()", r"give (2, 64); logits of shape (2, 10)"),
        (ODD.format("return super().forward(x) / 0"), "not finite"),
        ("import sys\nsys.exit(0)", "line 2 does not import: it calls sys.exit(0); raise an error instead"),
        ("import sys\ndef build(data, **o): sys.exit(0)", "line 2: build failed: it calls sys.exit(0)"),
        (ODD.format("x -= 0.5; return super().forward(x)"), "the model changes its input in place; let"),
        (ODD.format("return super().forward(x).squeeze()"), "one image gives (10,); logits of shape (1, 10)"),
    ],
)  # fmt: skip
def test_bad_methods_get_one_clear_line(folder, method, message) -> None:
    (folder / "method.py").write_text(method)
    submission = submissions.load(NAME)
    refused(lambda: methods.build(submission, "linf", tracks.load("digits")), message)


def test_every_layer_of_a_submission_is_torch() -> None:
    for name in submissions.names():
        submission = submissions.load(name)
        for variant in (v for v, found in submission.variants.items() if "digits" in found.tracks):
            assert isinstance(methods.build(submission, variant, tracks.load("digits")), nn.Module)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"certified_radius": [0.1]}, "unknown key 'certified_radius'; did you mean 'certified_radii'"),
        ({"smoothing": {"sigma": 0}}, "smoothing.sigma: Input should be greater than 0"),
        ({"smoothing": {"sigma": float("inf")}}, "smoothing.sigma: Input should be a finite number"),
        ({"smoothing": {"alpha": 1}}, "smoothing.alpha: Input should be less than 1"),
        ({"smoothing": {"n": 0}}, "smoothing.n: Input should be greater than 0"),
        ({"smoothing": {"n": 20}}, "smoothing: n 20 cannot be halved for 6 looks"),
        ({"smoothing": {"sigmas": 1}}, "unknown key 'smoothing.sigmas'; did you mean 'sigma'?"),
        ({"corruptions": {"names": ["fog"]}}, "colour images of 32x32 pixels or more, these are 1x8x8"),
        ({"corruptions": {"severitys": [1]}}, "corruptions.severitys"),
    ],
)
def test_bad_tracks_get_one_clear_line(tmp_path, monkeypatch, change, message) -> None:
    content = yaml_file.read_yaml(tracks.FOLDER / "digits.yaml")
    for key, value in change.items():
        content[key] = {**content.get(key, {}), **value} if isinstance(value, dict) else value
    (tmp_path / "digits.yaml").write_text(yaml.safe_dump(content))
    monkeypatch.setattr(tracks, "FOLDER", tmp_path)
    refused(lambda: tracks.load("digits"), message)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ("train: {device: cpu, precison: 16-mixed}", r"unknown key 'train\.precison'; did you mean 'precision'"),
        ("arithmetic: portabel", "arithmetic.*'portable' or 'native'"),
    ],
)
def test_bad_params_get_one_clear_line(tmp_path, monkeypatch, params, message) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(params)
    with pytest.raises(BenchmarkError, match=message):
        run_settings()


def test_every_row_of_a_track_is_smoothed_when_the_track_says_so() -> None:
    for name in ("Wong2020Fast-linf", "Havens2024LoFAST-mean_pool"):
        row = load_row("digits", name)
        assert stage_names("digits", name)[-4:] == ["smooth", "pictures", "attention", "collect"]
        without = dataclasses.replace(row, track=row.track.model_copy(update={"smoothing": None}))
        assert "smooth" not in [one.name for one in protocol.plan(without)]
        assert Path("benchmark/certificates/smoothing.py") in stage_code("smooth", "digits", name)
        assert Path("benchmark/certificates/smoothing.py") not in stage_code("train", "digits", name)
