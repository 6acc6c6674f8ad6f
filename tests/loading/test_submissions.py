"""Submissions and their methods: what is wrong with one is said in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from benchmark.loading import methods, submissions, tracks
from benchmark.runtime.errors import BenchmarkError

ODD = (
    "from torch import nn\nclass M(nn.Sequential):\n def __init__(self): super().__init__(nn.Flatten(), nn.Linear(64, 10))\n"
    " def forward(self, x): {}\ndef build(data, **o): return M()"
)


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
        (("  linf:", "  v1.0:"), "variant name 'v1.0' holds a dot, at which DVC splits names; write 'v1_0'"),
        (("  linf:", "  línf:"), "use the letters a to z, digits and '_' only"),
        (("  linf:", f"  {'a' * 300}:"), "has 300 characters; use 60 at most"),
        (("name: Wong2020Fast", f"name: {'W' * 300}"), "at most 60 characters"),
        (("variants:", "variants:\n  Linf: {title: Other, tracks: {}}"), "'Linf' differs from 'linf' in case only"),
        (
            ("url: https:", "url: 'javascript:alert(1)' #"),
            "paper.url: 'javascript:alert(1)' is no web address; write one that",
        ),
        (("url: https:", "url: //"), "is no web address"),
        (
            ("variants:", "claims: [{track: digits, metric: clean, value: 50, source: none}]\nvariants:"),
            "claims.0.value: 50 is no fraction from 0 to 1; write 0.5 for 50%",
        ),
        (
            ("variants:", "claims: [{track: digits, metric: clean, value: -0.5, source: none}]\nvariants:"),
            "-0.5 is no fraction",
        ),
        (("default: false", "default: [digit]"), "default names digit, which is none of the variant's tracks: digits"),
        (
            ("objective: adversarial", "objective: loop"),
            "no training file named 'loop'",
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


def test_a_submission_that_is_not_utf_8_gets_one_line(tmp_path, monkeypatch) -> None:
    write_submission(tmp_path)
    file = tmp_path / "Wong2020Fast" / "submission.yaml"
    file.write_bytes(file.read_bytes().replace(b"summary: ", b"summary: na\xefve "))
    monkeypatch.setattr(submissions, "FOLDER", tmp_path)
    with pytest.raises(BenchmarkError, match=r"submission\.yaml: not UTF-8 \(byte \d+\); save it as UTF-8"):
        submissions.load("Wong2020Fast")


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
        ("import sys\nsys.exit(0)", "line 2 does not import: it calls sys.exit(0); raise an error instead"),
        ("import sys\ndef build(data, **o): sys.exit(0)", "line 2: build failed: it calls sys.exit(0)"),
        (ODD.format("x -= 0.5; return super().forward(x)"), "the model changes its input in place; let"),
        (ODD.format("return super().forward(x).squeeze()"), "one image gives (10,); logits of shape (1, 10)"),
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


def test_every_layer_of_a_submission_is_torch(monkeypatch) -> None:
    for name in submissions.names():
        submission = submissions.load(name)
        for variant in (v for v, found in submission.variants.items() if "digits" in found.tracks):
            assert isinstance(methods.build(submission, variant, tracks.load("digits")), nn.Module)
