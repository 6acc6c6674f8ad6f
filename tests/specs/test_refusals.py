"""What submission.yaml, method.py, tracks and params.yaml must not contain: each is refused in one line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError
from tiny_project import edit
from tiny_training import spec

from benchmark.runtime import yaml_file
from benchmark.runtime.errors import BenchmarkError, explain
from benchmark.specs import methods, submissions, tracks
from benchmark.specs.rows import load_row
from benchmark.specs.run_settings import run_settings
from benchmark.specs.submission import Submission, VariantOnTrack
from benchmark.specs.threat import AttackSpec, ThreatModel
from benchmark.specs.track import CorruptionSpec, PicturesSpec
from benchmark.specs.training import Augmentation, TrainingSpec, WeightsSpec, recipe_problem

NAME = "Wong2020Fast"
RECIPE = {"objective": "standard", "epochs": 6, "batch_size": 16, "learning_rate": 0.02}
FGSM, PGD = ({"attack": name, "norm": norm, "eps": eps} for name, norm, eps in (("fgsm", "Linf", 0.15), ("pgd", "L2", 1.0)))
ODD = (
    "from torch import nn\nclass M(nn.Sequential):\n def __init__(self): super().__init__(nn.Flatten(), nn.Linear(64, 10))\n"
    " def forward(self, x): {}\ndef build(data, **o): return M()"
)
# a text of submission.yaml, another in its place, and words of the refusal
SUBMISSIONS = [
    ("learning_rate:", "learning_rat:", "unknown key 'variants.linf.tracks.digits.training.learning_rat'; did you mean 'learning_rate'?"),
    ("summary:", "sumary:", "unknown key 'sumary'; did you mean 'summary'?"),
    ("summary: ", "summary: na\xefve ", "save it as UTF-8"),
    ("eps: 0.15, p", "eps: 8, p", "pixels in [0, 1]"),
    ("objective: adversarial", "objective: adversary", "no objective named 'adversary'; did you mean 'adversarial'?"),
    ("attack: fgsm", "attack: fgms", "no attack named 'fgms'; did you mean 'fgsm'?"),
    ("      digits:", "      digit:", "no track named 'digit'; did you mean 'digits'?"),
    ("epochs: 30", "epochs: many", "variants.linf.tracks.digits.training.epochs"),
    ("name: Wong2020Fast", "name: Wong2021Fast", "must match its folder"),
    ("variants:", "variants: [}", "not valid YAML"),
    ("epochs: 30", "epochs: 30\n          epochs: 31", "the key 'epochs' stands twice"),
    ("  linf:", "  v1.0:", "variant name 'v1.0' holds a dot, at which DVC splits names; write 'v1_0'"),
    ("  linf:", "  l\u00ednf:", "use the letters a to z, digits and '_' only"),
    ("  linf:", f"  {'a' * 300}:", "has 300 characters; use 60 at most"),
    ("name: Wong2020Fast", f"name: {'W' * 300}", "at most 60 characters"),
    ("variants:", "variants:\n  Linf: {title: Other, tracks: {}}", "'Linf' differs from 'linf' in case only"),
    ("url: https:", "url: 'javascript:alert(1)' #", "paper.url: 'javascript:alert(1)' is no web address; write one that"),
    ("url: https:", "url: //", "is no web address"),
    ("variants:", "claims: [{track: digits, metric: clean, value: 50, source: none}]\nvariants:", "claims.0.value: 50 is no fraction from 0 to 1; write 0.5 for 50%"),
    ("variants:", "claims: [{track: digits, metric: clean, value: -0.5, source: none}]\nvariants:", "-0.5 is no fraction"),
    ("default: false", "default: [digit]", "default names digit, which is none of the variant's tracks: digits"),
    ("epochs: 30", "epochs: 30\n          selection: {by: robust, attack: {attack: pgdd, norm: L2, eps: 1}}", "no attack named 'pgdd'"),
    ("objective: adversarial", "objective: loop", "no objective named 'loop'"),
    *(("  linf:", f"  {key}:", "is no text; put it in quotes, as 'no' or '2'") for key in ("no", "2", "1.5", "null", "on")),
]  # fmt: skip
# changes of a recipe
RECIPES = [
    ({"attack": FGSM | {"eps": 8}}, "pixels in [0, 1], so 8/255 is 0.0314"),
    ({"selection": {"by": "robust"}}, "needs an `attack`"),
    ({"selection": {"attack": PGD}}, "has no use for an `attack`"),
    ({"selection": {"by": "certified"}}, "needs a `certificate`, such as lipschitz, and a `radius`"),
    ({"selection": {"by": "clean", "radius": 0.1}}, "has no use for a certificate"),
    ({"selection": {"by": "certified", "certificate": "unsound_paper", "radius": 0.1}}, "nothing can be certified by it"),
    ({"selection": {"patiense": 1}}, "did you mean 'patience'?"),
    ({"warmup_epochs": 6}, "leaves none of 6 epochs at the full radius"),
    ({"rate_warmup_epochs": 2}, "one_cycle has its own rise"),
    ({"schedule": "constant", "final_rate": 0.1}, "final_rate is where a cosine ends"),
    ({"schedule": "cosine", "rate_warmup_epochs": 6}, "should be below epochs 6"),
    ({"closing": {"epochs": 6}}, "closing.epochs 6 should be below epochs 6"),
    ({"closing": {"epochs": 1, "augmentation": {"mixup": 0.2}}}, "may end before the last epochs, not begin there"),
    ({"learning_rate": float("inf")}, "finite"),
    ({"ema": 1.0}, "less than 1"),
    ({"augmentation": {"mixupp": 1}}, "'variants.v.tracks.digits.training.augmentation.mixupp'; did you mean"),
    ({"clip_nrom": 1}, "did you mean 'clip_norm'?"),
    ({"epochs": 0}, "epochs 0 trains nothing"),
    ({"prepare": [{"name": "scaling"}] * 2}, "the preparation scaling is given twice"),
    ({"penalties": [{"name": "msvp"}] * 2}, "the penalty msvp is given twice"),
    ({"init_from": {"row": "A-b", "cell": "c"}}, "name one"),
    ({"init_from": {}}, "name one"),
]  # fmt: skip
# changes of a recipe that do not fit images of this shape; the last does
MISFITS = [
    ({"attack": PGD | {"eps": 128}}, (3, 32, 32), "L2 eps 128 is above 55.43, the diameter"),
    ({"selection": {"by": "robust", "attack": PGD | {"eps": 9}}}, (1, 8, 8), "above 8"),
    ({"augmentation": {"jitter": 0.1}}, (1, 8, 8), "colour images, these are 1x8x8"),
    ({"augmentation": {"randaugment": 2}}, (4, 8, 8), "1 or 3 channels"),
    ({"augmentation": {"crop": 8}}, (1, 8, 8), "out of sight"),
    ({"closing": {"epochs": 1, "augmentation": {"crop": 8}}}, (1, 8, 8), "closing.augmentation.crop 8 could push"),
    ({"attack": PGD | {"eps": 8}}, (1, 8, 8), None),
]
RULES = [
    (CorruptionSpec, {"names": ["frosted"]}, "unknown corruption 'frosted'; did you mean 'frost'?"),
    (CorruptionSpec, {"severities": [0]}, "unknown severity 0; known: 1, 2, 3, 4, 5"),
    (CorruptionSpec, {"names": ["fog", "fog"]}, "fog stands twice"),
    (CorruptionSpec, {"severities": [2, 2]}, "2 stands twice"),
    (CorruptionSpec, {"names": []}, "names"),
    (CorruptionSpec, {"seed": -1}, "seed"),
    (PicturesSpec, {"eps": 8}, "less than or equal to 1"),
    (PicturesSpec, {"eps": 0.1, "images": 0}, "images"),
    (PicturesSpec, {"eps": 0.1, "radii": [1, 2, 3, 4, 5]}, "at most 4"),
    (PicturesSpec, {"eps": 0.1, "radii": [1, 1]}, "a radius stands twice"),
    (PicturesSpec, {"eps": 0.1, "radii": [0]}, "greater than 0"),
    (ThreatModel, {"norm": "Linf", "eps": 8}, "pixels in [0, 1]"),
    (ThreatModel, {"norm": "L2", "eps": -0.1}, "greater than or equal to 0"),
    (AttackSpec, PGD | {"name": "auto_attack"}, "would pass for AutoAttack"),
    (VariantOnTrack, {}, "give either `training`, or `weights`"),
    (VariantOnTrack, {"training": RECIPE, "weights": {}}, "give either `training`, or `weights`"),
    (WeightsSpec, {"sha256": "0" * 64}, "pins a file"),
]
# changes of the track digits
TRACKS = [
    ({"certified_radius": [0.1]}, "unknown key 'certified_radius'; did you mean 'certified_radii'"),
    ({"smoothing": {"sigma": 0}}, "smoothing.sigma: Input should be greater than 0"),
    ({"smoothing": {"sigma": float("inf")}}, "smoothing.sigma: Input should be a finite number"),
    ({"smoothing": {"alpha": 1}}, "smoothing.alpha: Input should be less than 1"),
    ({"smoothing": {"n": 0}}, "smoothing.n: Input should be greater than 0"),
    ({"smoothing": {"n": 20}}, "smoothing: n 20 cannot be halved for 6 looks"),
    ({"smoothing": {"sigmas": 1}}, "unknown key 'smoothing.sigmas'; did you mean 'sigma'?"),
    ({"corruptions": {"names": ["fog"]}}, "colour images of 32x32 pixels or more, these are 1x8x8"),
    ({"corruptions": {"severitys": [1]}}, "corruptions.severitys"),
    ({"suites": {"a": [FGSM], "b": [FGSM]}}, "fgsm-Linf-0.15 stands twice"),
    ({"suites": {"standard": [PGD | {"eps": 128}]}}, "L2 eps 128 is above 8, the diameter of 1x8x8 images"),
    ({"development": {"standard": []}}, "a suite standard is published"),
    ({"development": {"adaptive": []}}, "a suite adaptive is published"),
    ({"suites": {"adaptive": []}}, "the suite adaptive is each row's own"),
    ({"suites": {"fast": [PGD | {"attack": "quick"}]}}, "quick is a part of AutoAttack"),
    ({"development": {"d": [PGD] * 2}}, "stands twice in the development suite d"),
]
METHODS = [
    ("import nothing_like_this", "does not import: ModuleNotFoundError"),
    ("x = 1", "must define build"),
    ("def build(data): pass", "build failed"),
    ("def build(data, **o):\n raise RuntimeError('boom')", "method.py, line 2: build failed: RuntimeError: boom"),
    ("from torch import nn\ndef build(data, **o): return nn.Linear(3, 10)", "the model fails on two images: RuntimeError"),
    ("def build(data, **o): return 3", "returned int, not a torch module"),
    ("from torch import nn\ndef build(data, **o): return nn.Flatten()", "give (2, 64); logits of shape (2, 10)"),
    (ODD.format("return super().forward(x) / 0"), "not finite"),
    ("import sys\nsys.exit(0)", "line 2 does not import: it calls sys.exit(0); raise an error instead"),
    ("import sys\ndef build(data, **o): sys.exit(0)", "line 2: build failed: it calls sys.exit(0)"),
    (ODD.format("x -= 0.5; return super().forward(x)"), "the model changes its input in place; let"),
    (ODD.format("return super().forward(x).squeeze()"), "one image gives (10,); logits of shape (1, 10)"),
]
UNKNOWN = [
    (lambda: tracks.load("digit"), "unknown track 'digit'; did you mean 'digits'?"),
    (lambda: submissions.load("Wong2020Fat"), "unknown submission 'Wong2020Fat'; did you mean 'Wong2020Fast'?"),
    (lambda: load_row("digits", "Wong2020Fast-lin"), "has no variant 'lin'; did you mean 'linf'?"),
    (lambda: load_row("cifar10_jpeg", "Wong2020Fast-linf"), "it is on digits: give --track digits"),
    (lambda: load_row("digits", "Wong2020Fast"), "use <submission>-<variant>; did you mean"),
]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A copy of a submission, the only one there is."""
    source, copy = submissions.FOLDER / NAME, tmp_path / NAME
    copy.mkdir()
    for name in ("submission.yaml", "method.py"):
        (copy / name).write_text((source / name).read_text())
    monkeypatch.setattr(submissions, "FOLDER", tmp_path)
    return copy


def assert_refused(call, message: str) -> None:
    """Check that a call is refused in these words; conftest.py checks that they are one line."""
    with pytest.raises(BenchmarkError, match=re.escape(message)):
        call()


@pytest.mark.parametrize(("call", "message"), UNKNOWN)
def test_unknown_names_suggest_the_near_miss(call, message) -> None:
    assert_refused(call, message)


@pytest.mark.parametrize(("old", "new", "message"), SUBMISSIONS)
def test_bad_submissions_get_one_line(folder, old, new, message) -> None:
    path = folder / "submission.yaml"
    text = path.read_text()
    assert old in text
    path.write_bytes(text.replace(old, new).encode("latin-1" if "\xef" in new else "utf-8"))
    assert_refused(lambda: submissions.load(NAME), message)


# a file of the submission, its text (None: it is a folder), and words of the refusal
FILES = [
    ("a\x1b[2J.py", "", "name the file 'a\\x1b[2J.py' by letters a to z, digits and '_' only"),
    ("a\u202eb.py", "", "name the file 'a\\u202eb.py' by"),
    ("two words.py", "", "name the file 'two words.py' by"),
    ("x.py", None, "x.py is no file"),
    ("scaled.py", "objective: int = 1\n", "scaled.py has no line `def objective(` or `objective = `, so it is no objective"),
    ("test_scaled.py", "def objective(attack): ...\n", "'test_scaled' is the name of a test, not of a component"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "message"), FILES)
def test_bad_files_of_a_submission_get_one_line(folder, name, text, message) -> None:
    path = folder / name
    path.mkdir() if text is None else path.write_text(text)
    if "scaled" in name:
        edit(folder / "submission.yaml", "objective: adversarial", f"objective: {path.stem}")
    assert_refused(lambda: submissions.load(NAME), message)


@pytest.mark.parametrize(
    "changes", [{"objective": "a" * 61}, *({key: [{"name": "a" * 61}]} for key in ("penalties", "prepare"))]
)
def test_names_of_components_have_60_characters_at_most(changes) -> None:
    with pytest.raises(ValidationError, match="at most 60 characters"):
        TrainingSpec.model_validate(RECIPE | changes)


@pytest.mark.parametrize(("method", "message"), METHODS)
def test_bad_methods_get_one_line(folder, method, message) -> None:
    (folder / "method.py").write_text(method)
    assert_refused(lambda: methods.build(submissions.load(NAME), "linf", tracks.load("digits")), message)


@pytest.mark.parametrize(("changes", "message"), RECIPES)
def test_bad_recipes_get_one_line(changes, message) -> None:
    paper = {"title": "t", "authors": "a", "year": 2026}
    variants = {"v": {"title": "t", "tracks": {"digits": {"training": RECIPE | changes}}}}
    with pytest.raises(ValidationError) as raised:
        Submission.model_validate({"name": "N", "summary": "s", "paper": paper, "variants": variants})
    line = str(explain(raised.value, Submission, "submission.yaml"))
    assert message in line
    assert "\n" not in line


@pytest.mark.parametrize(("changes", "shape", "message"), MISFITS)
def test_recipes_that_do_not_fit_the_images_are_refused(changes, shape, message) -> None:
    problem = recipe_problem(spec(**changes), shape)
    assert (problem is None) if message is None else (message in problem)


def test_a_misfit_stops_a_row_with_its_place(monkeypatch) -> None:
    row = load_row("digits", "Wong2020Fast-linf")
    wrong = row.settings.training.model_copy(update={"augmentation": Augmentation(jitter=0.1)})
    settings = row.settings.model_copy(update={"training": wrong})
    monkeypatch.setattr("benchmark.specs.submissions.settings", lambda *_: settings)
    assert_refused(
        lambda: load_row("digits", row.name), "submission.yaml: variant linf on digits: augmentation.jitter is for"
    )


@pytest.mark.parametrize(("kind", "rules", "message"), RULES)
def test_rules_that_make_no_sense_are_refused(kind, rules, message) -> None:
    with pytest.raises(ValidationError) as raised:
        kind.model_validate(rules)
    assert message in str(raised.value)


@pytest.mark.parametrize(("change", "message"), TRACKS)
def test_bad_tracks_get_one_line(tmp_path, monkeypatch, change, message) -> None:
    content = yaml_file.read_yaml(tracks.FOLDER / "digits.yaml")
    for key, value in change.items():
        content[key] = {**content.get(key, {}), **value} if key in ("smoothing", "corruptions") else value
    if "suites" in change:
        content["development"] = {}
    (tmp_path / "digits.yaml").write_text(yaml.safe_dump(content))
    monkeypatch.setattr(tracks, "FOLDER", tmp_path)
    assert_refused(lambda: tracks.load("digits"), message)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ("train: {device: cpu, precison: 16-mixed}", "unknown key 'train.precison'; did you mean 'precision'"),
        ("arithmetic: portabel", "'portable' or 'native'"),
    ],
)
def test_bad_params_get_one_line(tmp_path, monkeypatch, params, message) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(params)
    assert_refused(run_settings, message)
