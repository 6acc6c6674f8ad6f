"""Attacks contributed against one row: they can only lower its numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from safetensors.torch import load_file
from stages import run_stage, stage_code, stage_names
from tiny_linear_row import CONTRIBUTED, EXACT, HEAD, NAMES, ROW, record, robust
from tiny_project import ROOT, Project, append

from benchmark import protocol
from benchmark.pipeline import generate, inputs
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import methods
from benchmark.specs.rows import load_row
from benchmark.specs.threat import ThreatModel

pytestmark = pytest.mark.slow


def test_an_attack_lowers_the_number_by_exactly_the_images_that_it_breaks(linear_row) -> None:
    before = robust(linear_row)
    assert 5 < before < record().clean.count
    assert robust(linear_row, HEAD + "    return images\n") == before, "one that finds nothing changes no number"
    attack = record().attacks[1]
    assert (attack.suite, attack.id, attack.accuracy.count) == ("adaptive", "contributed-L2-0.5", record().clean.count)
    after = robust(linear_row, EXACT)
    assert 0 < after < before
    found = record()
    assert found.robust[0].attacks == ("pgd-L2-0.5", "contributed-L2-0.5")
    assert found.attacks[1].remaining == {"contributed": found.attacks[1].accuracy.count}
    assert {"code attack-adaptive", "adversarial images adaptive"} <= {*found.sha256}
    images = load_file(ROW / "record/images.safetensors")
    assert {"clean", "pgd-L2-0.5", "contributed-L2-0.5"} == {*images}
    moved = torch.linalg.vector_norm((images["contributed-L2-0.5"] - images["clean"]).flatten(1), dim=1)
    assert moved.max() <= 0.5 + 1e-6
    weights = load_file(ROW / "train/model.safetensors")
    labels = torch.tensor(pq.read_table(ROW / "record/evidence.parquet")["label"].to_pylist())
    logits = torch.stack(list(images.values())).flatten(2) @ weights["1.weight"].T + weights["1.bias"]
    assert int((logits.argmax(2) == labels).all(0).sum()) == after, "replayed without the harness"


def test_images_count_by_their_distance_whatever_radius_they_were_looked_for_in(linear_row) -> None:
    """The same attack in a ball twice as large moves every image too far to count; in a smaller one, all it breaks count."""
    before = robust(linear_row)
    far = "attack: contributed, norm: L2, eps: 1.0"
    always = HEAD.replace("**options", "") + (
        "    step = torch.ones_like(images) * (images < 0.5) - 1.0 * (images >= 0.5)\n"
        "    return images + step / step.flatten(1).norm(dim=1)[:, None, None, None] * 0.999\n"
    )
    assert robust(linear_row, always, far) == before
    assert record().robust[0].attacks == ("pgd-L2-0.5",)
    assert record().attacks[1].accuracy.count < record().clean.count
    assert robust(linear_row, EXACT, "attack: contributed, norm: L2, eps: 0.4") < before
    assert record().robust[0].attacks == ("pgd-L2-0.5", "contributed-L2-0.4")


GIVEN = (
    torch.nn.Sequential(torch.nn.Identity(), torch.nn.Linear(2, 2)).requires_grad_(False),
    torch.ones(2, 1, 8, 8),
    torch.ones(2, dtype=torch.long),
)


def attacked(project: Project, code: str, seed: int = 0, **options: object) -> torch.Tensor:
    """What a contributed file makes of images of ones, as its process asks it."""
    project.bring("Tiny2026Linear", "contributed", code, CONTRIBUTED)
    threat = ThreatModel(norm="L2", eps=0.5)
    return methods.attack("contributed", "Tiny2026Linear").attack(*GIVEN, threat, seed=seed, **options)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (HEAD + "    return None\n", r"contributed\.py: the attack returned NoneType, not a tensor of images"),
        (HEAD + "    raise OSError(28, 'boom')\n", r"contributed\.py, line 5: the attack failed: OSError: \[Errno 28\] boom"),
        (EXACT, r"contributed\.py: the attack failed: TypeError: .* 'stepps'"),
        ("import nothing_like_this\n", r"contributed\.py, line 1 does not import: ModuleNotFoundError"),
    ],
)  # fmt: skip
def test_an_attack_that_fails_is_refused_by_name(linear_row, code, message) -> None:
    with pytest.raises(BenchmarkError, match=message):
        attacked(linear_row, code, stepps=3)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("    labels.zero_()\n    return images.zero_()\n", r"contributed-L2-0\.5 left its L2 0\.5 ball"),
        ("    return images * float('nan')\n", r"contributed-L2-0\.5 returned pixels that are not finite"),
        ("    return images[:1]\n", r"contributed-L2-0\.5 returned shape \(1, 1, 8, 8\)"),
    ],
)
def test_an_attack_that_cheats_is_held_against_the_clean_images(linear_row, body, message) -> None:
    with pytest.raises(BenchmarkError, match=message):
        robust(linear_row, HEAD + body)
    assert not (ROW / "attack-adaptive").exists()


def test_a_contributed_file_gets_copies_and_a_generator_that_its_seed_starts(linear_row) -> None:
    """Whatever ran before it: a run that goes on after a kill draws as one that was not stopped."""
    found = []
    for before, seed in ((1, 0), (2, 0), (2, 3)):
        torch.manual_seed(before)
        found.append(attacked(linear_row, HEAD + "    return torch.rand_like(images)\n", seed))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[1], found[2])
    damage = "labels.zero_(); model[1].weight.zero_(); model[0] = torch.nn.Linear(64, 10)"
    assert not attacked(linear_row, f"{HEAD}    {damage}\n    return images.zero_()\n").any()
    assert all(given.all() for given in (*GIVEN[1:], GIVEN[0][1].weight))
    assert type(GIVEN[0][0]) is torch.nn.Identity


def test_the_attack_in_the_readme_finds_what_the_exact_one_finds(linear_row) -> None:
    """On a linear model, but for the box and for ties in a last digit."""
    example = (ROOT / "docs/bring-an-attack.md").read_text().partition("```python\n")[2].partition("```")[0]
    exact = robust(linear_row, EXACT)
    assert 0 <= exact - robust(linear_row, example, CONTRIBUTED + ", parameters: {steps: 50}") <= 1


def test_a_radius_that_a_contributed_attack_alone_refutes_is_never_published(linear_row) -> None:
    robust(linear_row, EXACT)
    append("submissions/Tiny2026Linear/submission.yaml", "        certificate: {name: lipschitz}\n")
    run_stage("certify", *NAMES)
    robust(linear_row)
    before = (ROW / "record/record.json").read_bytes()
    papers, adaptive = (pq.read_table(ROW / name / "evidence.parquet") for name in ("attack-papers", "attack-adaptive"))
    broken = np.array(adaptive["contributed-L2-0.5:success"]) & ~np.array(papers["pgd-L2-0.5:success"])
    radii = np.where(np.arange(len(broken)) == broken.argmax(), np.array(adaptive["contributed-L2-0.5:l2"]), 0.0)
    path = ROW / "certify/evidence.parquet"
    table = pq.read_table(path)
    path.unlink()
    pq.write_table(table.set_column(table.column_names.index("certified_l2"), "certified_l2", pa.array(radii)), path)
    words = r"is certified .* but contributed-L2-0\.5 broke it .*nothing is published"
    with pytest.raises(BenchmarkError, match=words):
        robust(linear_row)
    assert (ROW / "record/record.json").read_bytes() == before


def test_components_run_in_turn_on_what_stands(linear_row) -> None:
    code = EXACT.replace("*, seed)", "*, seed, component)").replace(
        "    weight,", "    if component == 'idle':\n        return images\n    weight,"
    )
    robust(linear_row, "components = ('idle', 'exact')\n" + code)
    remaining = record().attacks[1].remaining
    assert remaining["idle"] == record().clean.count > remaining["exact"]


def test_a_spec_may_name_an_attack_of_the_benchmark_with_other_parameters(linear_row) -> None:
    more = "attack: pgd, name: long_pgd, norm: L2, eps: 0.5, parameters: {steps: 40, step_size: 0.1}"
    before = robust(linear_row)
    assert robust(linear_row, "", more) < before
    assert record().attacks[1].id == "long_pgd-L2-0.5"
    words = r"adaptive attack pgd-L2-0\.5 has the id of one in the track's suite papers"
    with pytest.raises(BenchmarkError, match=words):
        robust(linear_row, "", more.replace("name: long_pgd, ", ""))


def test_a_submissions_own_file_serves_adaptive_alone_never_the_tracks_suites(linear_row) -> None:
    """Else a submission could put a weaker pgd in place of the track's."""
    folder = linear_row.root / "submissions/Tiny2026Linear"
    (folder / "pgd.py").write_text(HEAD + "    return images\n")
    linear_row.bring("Tiny2026Linear", "pgd", HEAD + "    return images\n", "attack: pgd, norm: L2, eps: 0.6")
    assert Path("submissions/Tiny2026Linear/pgd.py") in stage_code("attack-adaptive", *NAMES)
    assert Path("submissions/Tiny2026Linear/pgd.py") not in stage_code("attack-papers", *NAMES)
    assert Path("benchmark/attacks/pgd.py") in stage_code("attack-papers", *NAMES)
    for name in ("attack-papers", "attack-adaptive", "collect"):
        run_stage(name, *NAMES)
    papers, own = record().attacks
    assert papers.accuracy.count < own.accuracy.count == record().clean.count


@pytest.mark.parametrize(
    ("attack", "specs", "message"),
    [
        ("contributed", ["attack: contribted, norm: L2, eps: 1"], "adaptive: no attack named 'contribted'; did you mean 'contributed'?"),
        ("contributed", ["attack: method, norm: L2, eps: 1"], "adaptive: no attack named 'method'"),
        ("auto_attack", ["attack: auto_attack, norm: L2, eps: 1"], "auto_attack.py would pass for AutoAttack"),
        ("contributed", [CONTRIBUTED + ", name: autoattack"], "'autoattack' would pass for AutoAttack"),
        ("contributed", [CONTRIBUTED, CONTRIBUTED], "contributed-L2-0.5 stands twice in adaptive"),
        ("contributed", [CONTRIBUTED + ", sed: 1"], "unknown key 'variants.small.tracks.tiny.adaptive.0.sed'; did you mean 'seed'?"),
    ],
)  # fmt: skip
def test_bad_declarations_get_one_clear_line(linear_row, attack, specs, message) -> None:
    linear_row.bring("Tiny2026Linear", attack, HEAD + "    return images\n", *specs)
    with pytest.raises(BenchmarkError, match=re.escape(message)):
        load_row(*NAMES)


def test_bringing_an_attack_touches_no_step_before_it(linear_row) -> None:
    """The steps before it and the data stand as they were; one is new, and collect depends on it."""
    path = generate.row_file("tiny", "Tiny2026Linear-small")
    before, others = yaml.safe_load(generate.generate()[path])["stages"], generate.generate()
    linear_row.bring("Tiny2026Linear", "contributed", "from benchmark.attacks import cw\n" + EXACT, CONTRIBUTED)
    after = yaml.safe_load(generate.generate()[path])["stages"]
    assert stage_names(*NAMES) == ["train", "attack-papers", "attack-adaptive", "reliability", "attention", "collect"]
    assert after["train"] == before["train"]
    assert {**generate.generate(), path: ""} == {**others, path: ""}
    written = inputs.contents("tiny")
    stage = written[protocol.planned(load_row(*NAMES), "attack-adaptive").inputs]
    assert {"submissions/Tiny2026Linear/contributed.py", "benchmark/attacks/cw.py"} <= {*stage["code"]}
    assert [spec["attack"] for spec in stage["settings"]["suite"]] == ["contributed"]
    assert ROW / "attack-adaptive" in protocol.planned(load_row(*NAMES), "reliability").reads
    assert {str(ROW / "attack-adaptive"): {"persist": True}} in after["evaluate"]["outs"]
    for name in ("train", "attack-papers"):
        assert "contributed" not in json.dumps(written[protocol.planned(load_row(*NAMES), name).inputs])
