"""Suites that are no stage of the pipeline, and attacks brought against one row, which can only lower its numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from pydantic import ValidationError
from tiny_models import Linear, grey_images
from tiny_project import Project

from benchmark import evidence, pipeline, submissions, tracks
from benchmark.attacks import autoattack, quick
from benchmark.errors import BenchmarkError
from benchmark.headline import headline_names
from benchmark.records import AttackSpec, Record, ThreatModel, Track
from benchmark.stages.attack import attack_row
from benchmark.stages.collect import collect_row
from benchmark.stages.context import entry
from benchmark.stages.data import prepare_data
from benchmark.stages.train import train_row
from benchmark.stages.trial import try_suite

TRACK = """\
version: 1
title: Tiny digits
description: A few digits, for tests.
data: {source: digits, seed: 0, validation: 40, test: 40, shape: [1, 8, 8], classes: 10}
evaluation: {images: 20, seed: 0, batch_size: 6}
suites:
  papers:
    - {attack: pgd, norm: L2, eps: 0.5, parameters: {steps: 1, step_size: 0.25, random_start: false}}
development:
  quick:
    - {attack: quick, norm: L2, eps: 0.5}
certified_radii: []
"""
SUBMISSION = """\
name: Tiny2026Linear
summary: A linear model for tests.
paper: {title: None, authors: Nobody, year: 2026}
variants:
  small:
    title: Linear
    tracks:
      tiny:
        training: {objective: standard, epochs: 2, batch_size: 64, learning_rate: 0.01}
"""
METHOD = """\
from torch import nn

def build(data):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""
HEAD = "import torch\n\n\ndef attack(model, images, labels, threat, *, seed, **options):\n"
# the nearest rival's direction of a linear model, at the whole radius: exact but for the box
EXACT = (
    "import torch\n\n\n"
    "def attack(model, images, labels, threat, *, seed):\n"
    "    weight, rows = model[1].weight, torch.arange(len(labels))\n"
    "    gap = weight[labels][:, None] - weight\n"
    "    logits = model(images)\n"
    "    distance = (logits[rows, labels][:, None] - logits) / gap.norm(dim=-1)\n"
    "    distance[rows, labels] = float('inf')\n"
    "    away = gap[rows, distance.argmin(1)]\n"
    "    step = threat.eps * away / away.norm(dim=-1, keepdim=True)\n"
    "    return (images - step.view_as(images)).clamp(0, 1)\n"
)
NAMES = ("tiny", "Tiny2026Linear", "small")
ROW = Path("work/tiny/Tiny2026Linear-small")
BROUGHT = "attack: brought, norm: L2, eps: 0.5"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Project:
    """A project with a trained linear row and its suite `papers`."""
    project = Project.new(tmp_path_factory.mktemp("suites") / "project")
    (project.root / "benchmark/tracks/tiny.yaml").write_text(TRACK)
    folder = project.root / "submissions/Tiny2026Linear"
    folder.mkdir()
    (folder / "submission.yaml").write_text(SUBMISSION)
    (folder / "method.py").write_text(METHOD)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project.root)
        prepare_data("tiny")
        train_row(*NAMES)
        attack_row(*NAMES, "papers")
    return project


@pytest.fixture
def row(trained, tmp_path, monkeypatch) -> Project:
    """A copy of it, as working directory."""
    project = trained.copy(tmp_path / "row")
    monkeypatch.chdir(project.root)
    return project


def robust(project: Project, code: str | None = None, *specs: str) -> int:
    """Robust images of the row's Record after these attacks were brought."""
    if code is not None:
        project.bring("Tiny2026Linear", "brought", code, *(specs or (BROUGHT,)))
        attack_row(*NAMES, "adaptive")
    collect_row(*NAMES)
    return record().robust[0].accuracy.count


def record() -> Record:
    return Record.model_validate_json((ROW / "record/record.json").read_text())


def test_an_attack_that_finds_nothing_changes_no_number(row) -> None:
    before = robust(row)
    assert 5 < before < record().clean.count
    assert robust(row, HEAD + "    return images\n") == before
    assert [(a.suite, a.id, a.accuracy.count) for a in record().attacks][1:] == [
        ("adaptive", "brought-L2-0.5", record().clean.count)
    ]


def test_an_attack_that_breaks_images_lowers_the_number_by_exactly_those(row) -> None:
    before = robust(row)
    after = robust(row, EXACT)
    assert 0 < after < before
    found = record()
    assert found.robust[0].attacks == ("pgd-L2-0.5", "brought-L2-0.5")
    assert found.robust[0].accuracy.count == after
    assert found.attacks[1].remaining == {"brought": found.attacks[1].accuracy.count}
    assert {"code attack-adaptive", "adversarial images adaptive"} <= {*found.sha256}
    images = evidence_images(row)
    assert {"clean", "pgd-L2-0.5", "brought-L2-0.5"} == {*images}
    assert torch.linalg.vector_norm((images["brought-L2-0.5"] - images["clean"]).flatten(1), dim=1).max() <= 0.5 + 1e-6


def evidence_images(project: Project) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(project.root / ROW / "record/images.safetensors")


def test_images_count_by_their_distance_whatever_radius_they_were_looked_for_in(row) -> None:
    """The same attack in a ball twice as large moves every image too far to count; in a smaller one, all it breaks count."""
    before = robust(row)
    far = "attack: brought, norm: L2, eps: 1.0"
    always = HEAD.replace("**options", "") + (
        "    step = torch.ones_like(images) * (images < 0.5) - 1.0 * (images >= 0.5)\n"
        "    return images + step / step.flatten(1).norm(dim=1)[:, None, None, None] * 0.999\n"
    )
    assert robust(row, always, far) == before
    assert record().robust[0].attacks == ("pgd-L2-0.5",)
    assert record().attacks[1].accuracy.count < record().clean.count
    assert robust(row, EXACT, "attack: brought, norm: L2, eps: 0.4") < before
    assert record().robust[0].attacks == ("pgd-L2-0.5", "brought-L2-0.4")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("    return images + 0.5 * (0.5 - images).sign()\n", r"brought-L2-0\.5 left its L2 0\.5 ball"),
        ("    return images * float('nan')\n", r"brought-L2-0\.5 returned pixels that are not finite"),
        ("    return images[:1]\n", r"brought-L2-0\.5 returned shape \(1, 1, 8, 8\)"),
        ("    return None\n", r"brought\.py: the attack returned NoneType, not a tensor of images"),
        ("    raise OSError(28, 'boom')\n", r"brought\.py, line 5: the attack failed: OSError: \[Errno 28\] boom"),
    ],
)
def test_an_attack_that_cheats_or_fails_is_refused_by_name(row, body, message) -> None:
    with pytest.raises(BenchmarkError, match=message) as raised:
        robust(row, HEAD + body)
    assert "\n" not in str(raised.value)
    assert not (ROW / "attack-adaptive").exists()


def test_unknown_parameters_are_named(row) -> None:
    with pytest.raises(BenchmarkError, match=r"brought\.py: the attack failed: TypeError: .* 'stepps'"):
        robust(row, EXACT, BROUGHT + ", parameters: {stepps: 3}")


@pytest.mark.parametrize(
    "body",
    [
        "    model[1].weight.zero_()\n    return images\n",
        "    model[1] = torch.nn.Linear(64, 10)\n    model.train()\n    return images\n",
    ],
)
def test_an_attack_that_damages_its_model_breaks_nothing(row, body) -> None:
    """On the damaged model every image would be 'broken'."""
    before = robust(row)
    assert robust(row, HEAD + body) == before


def test_an_attack_that_changes_the_images_it_is_given_is_held_against_the_clean_ones(row) -> None:
    with pytest.raises(BenchmarkError, match=r"brought-L2-0\.5 left its L2 0\.5 ball"):
        robust(row, HEAD + "    labels.zero_()\n    return images.zero_()\n")


def test_an_attack_that_forgets_its_seed_still_gives_the_same_images(row) -> None:
    noise = HEAD + "    step = torch.randn_like(images)\n" + (
        "    step = 0.5 * step / step.flatten(1).norm(dim=1)[:, None, None, None]\n    return (images + step).clamp(0, 1)\n"
    )  # fmt: skip
    robust(row, noise)
    first = (ROW / "attack-adaptive/adversarial.safetensors").read_bytes()
    torch.manual_seed(99)
    robust(row, noise)
    assert (ROW / "attack-adaptive/adversarial.safetensors").read_bytes() == first


def test_components_run_in_turn_on_what_stands(row) -> None:
    code = EXACT.replace("*, seed)", "*, seed, component)").replace(
        "    weight,", "    if component == 'idle':\n        return images\n    weight,"
    )
    robust(row, "components = ('idle', 'exact')\n" + code)
    remaining = record().attacks[1].remaining
    assert remaining["idle"] == record().clean.count > remaining["exact"]


def test_a_spec_may_name_an_attack_of_the_benchmark_with_other_parameters(row) -> None:
    more = "attack: pgd, name: long_pgd, norm: L2, eps: 0.5, parameters: {steps: 40, step_size: 0.1}"
    before = robust(row)
    assert robust(row, "", more) < before
    assert record().attacks[1].id == "long_pgd-L2-0.5"
    with pytest.raises(
        BenchmarkError, match=r"adaptive attack pgd-L2-0\.5 has the id of one in the track's suite papers"
    ):
        robust(row, "", more.replace("name: long_pgd, ", ""))


def test_a_submissions_own_file_serves_adaptive_alone_never_the_tracks_suites(row) -> None:
    """Else a submission could put a weaker pgd in place of the track's."""
    folder = row.root / "submissions/Tiny2026Linear"
    (folder / "pgd.py").write_text(HEAD + "    return images\n")
    row.bring("Tiny2026Linear", "pgd", HEAD + "    return images\n", "attack: pgd, norm: L2, eps: 0.6")
    chosen = entry(*NAMES)
    assert Path("submissions/Tiny2026Linear/pgd.py") in chosen.code("attack-adaptive")
    assert Path("submissions/Tiny2026Linear/pgd.py") not in chosen.code("attack-papers")
    assert Path("benchmark/attacks/pgd.py") in chosen.code("attack-papers")
    attack_row(*NAMES, "papers")
    attack_row(*NAMES, "adaptive")
    collect_row(*NAMES)
    papers, own = record().attacks
    assert papers.accuracy.count < own.accuracy.count == record().clean.count


@pytest.mark.parametrize(
    ("attack", "specs", "message"),
    [
        ("brought", ["attack: brougt, norm: L2, eps: 1"], "adaptive: no attack file named 'brougt'; did you mean 'brought'?"),
        ("brought", ["attack: method, norm: L2, eps: 1"], "adaptive: no attack file named 'method'"),
        ("auto_attack", ["attack: auto_attack, norm: L2, eps: 1"], "auto_attack.py would pass for AutoAttack"),
        ("brought", [BROUGHT + ", name: autoattack"], "'autoattack' would pass for AutoAttack"),
        ("brought", [BROUGHT, BROUGHT], "brought-L2-0.5 stands twice in adaptive"),
        ("brought", [BROUGHT + ", sed: 1"], "unknown key 'variants.small.tracks.tiny.adaptive.0.sed'; did you mean 'seed'?"),
    ],
)  # fmt: skip
def test_bad_declarations_get_one_clear_line(row, attack, specs, message) -> None:
    row.bring("Tiny2026Linear", attack, HEAD + "    return images\n", *specs)
    with pytest.raises(BenchmarkError) as raised:
        entry(*NAMES)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_does_not_import_names_its_line(row) -> None:
    with pytest.raises(BenchmarkError, match=r"brought\.py, line 1 does not import: ModuleNotFoundError"):
        robust(row, "import nothing_like_this\n" + HEAD + "    return images\n")


def test_bringing_an_attack_touches_no_stage_before_it(row) -> None:
    """The stages of the row and of the data stand as they were; one is new, and collect depends on it."""
    path = pipeline.row_file("tiny", "Tiny2026Linear-small")
    before, others = json.loads(pipeline.generate()[path])["stages"], pipeline.generate()
    row.bring("Tiny2026Linear", "brought", EXACT, BROUGHT)
    after = json.loads(pipeline.generate()[path])["stages"]
    assert [*after] == ["train", "attack-papers", "attack-adaptive", "collect"]
    assert {name: stage for name, stage in after.items() if name in ("train", "attack-papers")} == {
        name: stage for name, stage in before.items() if name != "collect"
    }
    assert {**pipeline.generate(), path: ""} == {**others, path: ""}
    stage = after["attack-adaptive"]
    assert "submissions/Tiny2026Linear/brought.py" in stage["deps"]
    assert stage["params"][1:] == [
        {"benchmark/tracks/tiny.yaml": ["evaluation"]},
        {
            "submissions/Tiny2026Linear/submission.yaml": [
                "variants.small.tracks.tiny.model",
                "variants.small.tracks.tiny.adaptive",
            ]
        },
    ]
    assert str(ROW / "attack-adaptive") in after["collect"]["deps"]


def test_what_the_attack_imports_is_code_of_its_stage(row) -> None:
    row.bring("Tiny2026Linear", "brought", "from benchmark.attacks import cw\n" + EXACT, BROUGHT)
    assert Path("benchmark/attacks/cw.py") in entry(*NAMES).code("attack-adaptive")


def test_a_development_suite_is_tried_and_leaves_no_trace(row) -> None:
    before = {path: path.read_bytes() for path in Path("work/tiny").rglob("*") if path.is_file()}
    told: list[str] = []
    trial = try_suite("tiny", "Tiny2026Linear-small", "quick", told.append)
    assert {path: path.read_bytes() for path in Path("work/tiny").rglob("*") if path.is_file()} == before
    assert 0 < trial.standing["quick-L2-0.5"] < trial.clean <= trial.n == 20
    assert [*trial.parts["quick-L2-0.5"]] == ["apgd-ce", "apgd-t"]
    assert trial.parts["quick-L2-0.5"]["apgd-t"] == trial.standing["quick-L2-0.5"]
    assert any("attacking" in line and "apgd-ce" in line for line in told)
    assert try_suite("tiny", "Tiny2026Linear-small", "quick", told.append) == trial
    row.bring("Tiny2026Linear", "brought", EXACT, BROUGHT)
    tried = try_suite("tiny", "Tiny2026Linear-small", "adaptive", told.append)
    assert tried.standing["brought-L2-0.5"] < tried.clean
    assert not (ROW / "attack-adaptive").exists()


def test_a_suite_that_is_unknown_or_not_to_be_published_is_refused(row) -> None:
    for suite, near in (("quik", "did you mean 'quick'"), ("paper", "did you mean 'papers'")):
        with pytest.raises(BenchmarkError, match=rf"no suite '{suite}'; {near}"):
            try_suite("tiny", "Tiny2026Linear-small", suite, print)
    with pytest.raises(BenchmarkError, match="quick is for development and never published"):
        attack_row(*NAMES, "quick")
    with pytest.raises(BenchmarkError, match="declares no adaptive attack"):
        attack_row(*NAMES, "adaptive")
    (ROW / "train/model.safetensors").unlink()
    with pytest.raises(BenchmarkError, match=r"model\.safetensors is missing; run `rvb repro`"):
        try_suite("tiny", "Tiny2026Linear-small", "quick", print)


def test_development_suites_are_no_rule_of_the_comparison(row) -> None:
    """With and without them: the same stages, columns and code; only files that name the track's file by hash see it."""
    path = Path("benchmark/tracks/tiny.yaml")
    before, track, code = pipeline.generate(), tracks.load("tiny"), entry(*NAMES).code("attack-papers")
    path.write_text(yaml.safe_dump({k: v for k, v in yaml.safe_load(path.read_text()).items() if k != "development"}))
    without = tracks.load("tiny")
    assert (track.development, without.development) != ({}, {})
    assert without.development == {}
    assert pipeline.generate() == before
    assert (without.threats, headline_names(without)) == (track.threats, headline_names(track))
    assert entry(*NAMES).code("attack-papers") == code
    for stages in (json.loads(text).get("stages", {}) for name, text in before.items() if name.name == "dvc.yaml"):
        assert "development" not in json.dumps(stages)
        assert "quick" not in json.dumps(stages)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"development": {"standard": []}}, "a suite standard is published"),
        ({"development": {"adaptive": []}}, "a suite adaptive is published"),
        ({"suites": {"adaptive": []}, "development": {}}, "the suite adaptive is each row's own"),
        ({"suites": {"standard": [{"attack": "quick", "norm": "L2", "eps": 1.0}]}}, "quick is a part of AutoAttack"),
        ({"development": {"d": [{"attack": "pgd", "norm": "L2", "eps": 1.0}] * 2}}, "stands twice in the development suite d"),
    ],
)  # fmt: skip
def test_tracks_with_suites_that_could_be_mistaken_are_refused(change, message) -> None:
    with pytest.raises(ValidationError, match=message):
        Track.model_validate(tracks.load("digits").model_dump() | change)


def test_a_development_suite_may_repeat_an_attack_of_the_published_ones() -> None:
    track = tracks.load("digits").model_dump()
    track["development"]["more"] = [*track["suites"]["standard"], *track["development"]["quick"]]
    assert Track.model_validate(track).threats == tracks.load("digits").threats


def test_quick_is_the_first_two_parts_of_autoattack_by_another_name() -> None:
    model, images = Linear().eval().requires_grad_(False), grey_images()
    labels = model(images).argmax(1)
    threat = ThreatModel(norm="L2", eps=float(model.radius(images, labels, "L2").median()))
    assert quick.components == autoattack.components[:2]
    for part in quick.components:
        found = quick.attack(model, images, labels, threat, seed=0, component=part)
        assert torch.equal(found, autoattack.attack(model, images, labels, threat, seed=0, component=part))
    with pytest.raises(ValueError, match="no component 'square'"):
        quick.attack(model, images, labels, threat, seed=0, component="square")
    specs = tracks.load("digits").development["quick"]
    assert [spec.id for spec in specs] == ["quick-Linf-0.15", "quick-L2-0.5"]


def test_evidence_of_two_stages_with_one_column_is_refused() -> None:
    import pyarrow as pa

    shared = {"label": [1], "clean_prediction": [1], "clean_margin": [0.5]}
    first = pa.table({**shared, "pgd-L2-1:success": [True]})
    with pytest.raises(BenchmarkError, match="attack-adaptive and one before it both hold pgd-L2-1:success"):
        evidence.merge({"attack-papers": first, "attack-adaptive": first})


def test_only_autoattack_may_have_its_name() -> None:
    spec = {"norm": "L2", "eps": 1.0}
    assert AttackSpec(attack="autoattack", name="autoattack_again", **spec).id == "autoattack_again-L2-1"
    with pytest.raises(ValidationError, match="would pass for AutoAttack"):
        AttackSpec(attack="pgd", name="auto_attack", **spec)
    assert submissions.attack_file("autoattack") == Path("benchmark/attacks/autoattack.py")
