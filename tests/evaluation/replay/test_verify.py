"""`rvb verify`: what it checks, what it reports as unchecked, and when a last bit counts."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import tiny_record
import tiny_verified as row
import torch
from command import tiny_error as error
from command import tiny_rvb as rvb
from tiny_models import Through
from tiny_project import edit
from tiny_verified import EVIDENCE, FGSM, NAME, PUBLISHED, RECORD, STORED, WEIGHTS

from benchmark.commands import verify
from benchmark.evaluation.division import RANDOM
from benchmark.evaluation.replay.evaluator import Evaluator
from benchmark.evaluation.replay.findings import Verification
from benchmark.evaluation.replay.recount import check_rules
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import tracks

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("verified_row")]
BY_IMAGE, PUBLISHED_WEIGHTS = PUBLISHED / f"images/{NAME}.json", PUBLISHED / f"weights/{NAME}.safetensors"
SUBMISSION, TRACK = Path("submissions/Tiny2026Linear/submission.yaml"), Path("benchmark/tracks/tiny.yaml")


def edit_evidence(to: Callable[[float], float]) -> None:
    """Change image 3's clean margin, and sign the evidence again."""
    row.change_column("clean_margin", 3, to)
    row.sign("evidence", EVIDENCE)


def edit_records(change: Callable[[dict], None]) -> None:
    for path in (RECORD, PUBLISHED / f"{NAME}.json"):
        row.change_json(path, change)


def test_an_untampered_row_holds_and_what_is_not_stored_is_named() -> None:
    result = rvb("verify", NAME)
    assert result.exit_code == 0, result.exception
    assert f"{NAME} on tiny, built and published: holds, replayed" in result.output
    content = row.verification("--sample", "16")
    assert (content["of"], content["trust"], content["tier"]) == ("built and published", "rebuilt", "replayed")
    counts = {one["what"]: one["count"] for one in content["checked"]}
    assert counts["clean predictions and margins, bit for bit"] == 20
    assert counts["attacks' images, 20 each: ball, box, distances, predictions, margins, success"] == 2
    assert next(count for what, count in counts.items() if what.startswith("sha256 (weights, evidence, data ")) == 7
    assert any("certified radii made again" in what and count == 16 for what, count in counts.items())
    assert [words.split(",")[0] for words in content["unchecked"]] == ["images of the probes (reliability", "training"]


def test_files_that_are_damaged_or_not_here() -> None:
    EVIDENCE.write_bytes(b"no parquet")
    content = row.verification()
    assert any(line.startswith(f"{EVIDENCE} cannot be read (") for line in content["lines"])
    EVIDENCE.unlink()
    STORED.write_bytes(b"no tensors")
    content = row.verification()
    assert any(words.startswith("evidence: not here, in work/tiny") for words in content["unchecked"])
    assert [line.partition(",")[0] for line in content["lines"]] == ["sha256 of adversarial images more"]
    assert content["tier"] == "claimed"


def test_a_published_record_alone_is_checked_in_itself() -> None:
    shutil.rmtree("work/tiny")
    PUBLISHED_WEIGHTS.unlink()
    content = row.verification()
    assert (content["of"], content["tier"], content["lines"]) == ("published", "claimed", [])
    assert content["unchecked"][0].startswith("weights, evidence, adversarial images ")
    result = rvb("verify", "--all")
    assert result.exit_code == 0
    assert "1 row holds: 0 replayed, 1 as far as they could be checked" in result.output
    broken = json.loads(BY_IMAGE.read_text())["scores"]["robust L2 0.5"].index("0")
    row.change_json(BY_IMAGE, lambda images: images["radii"]["certified"].__setitem__(broken, 0.6))
    gate = "certified, but not robust L2 0.5"
    assert f"image {broken}: {gate}: certified at l2 0.6 -> not robust L2 0.5" in row.verification()["lines"]
    row.change_json(BY_IMAGE, lambda images: images["scores"].update({"robust L2 0.5": 20 * "0"}))
    row.change_json(BY_IMAGE, lambda images: images["radii"].update(certified=[0.6 + image / 100 for image in range(20)]))
    lines = rvb("verify", NAME).output.splitlines()
    assert sum(f": {gate}: recorded certified at l2 " in line for line in lines) == 10
    assert f"{NAME}: {gate}: 10 images more (--json names all)" in lines
    assert sum(f": {gate}: " in line for line in row.verification()["lines"]) == 20


def test_in_a_fresh_clone_the_published_weights_are_replayed() -> None:
    """Its images, weights and the package are all that is there."""
    shutil.rmtree("work/tiny")
    assert ", published in" in rvb("show", NAME).output
    content = row.verification()
    assert (content["tier"], content["lines"]) == ("claimed", [])
    checked = {one["what"]: one["count"] for one in content["checked"]}
    assert checked["clean predictions"] == 20
    assert any("certified radii made again" in what for what in checked)
    kept = PUBLISHED_WEIGHTS.read_bytes()
    row.change_tensors(PUBLISHED_WEIGHTS, lambda tensors: [tensor.add_(1e-6) for tensor in tensors.values()])
    assert any(line.startswith(f"sha256 of weights, {PUBLISHED_WEIGHTS}") for line in row.verification()["lines"])
    PUBLISHED_WEIGHTS.write_bytes(kept)
    clean = json.loads(BY_IMAGE.read_text())["scores"]["clean"]
    assert "0" in clean
    swapped = clean.replace("1", "x", 1).replace("0", "1", 1).replace("x", "0")  # as many right, but two others
    row.change_json(BY_IMAGE, lambda images: images["scores"].update(clean=swapped))
    assert any("clean, right" in line for line in row.verification()["lines"])


def test_a_published_record_that_is_not_the_built_one_is_verified_by_itself() -> None:
    row.change_json(PUBLISHED / f"{NAME}.json", lambda record: record["robust"][1]["accuracy"].update(count=20))
    records = json.loads(rvb("verify", NAME, "--json").stdout)
    assert [(one["of"], bool(one["contradictions"])) for one in records] == [("built", False), ("published", True)]
    assert records[0]["tier"] == "replayed"
    row.change_json(PUBLISHED / f"{NAME}.json", lambda record: record["sha256"].update(weights="0" * 64))
    PUBLISHED_WEIGHTS.unlink()
    words = json.loads(rvb("verify", NAME, "--json").stdout)[1]["unchecked"]
    assert any(one.startswith(f"weights: {WEIGHTS} is of another build (sha256 ") for one in words)


def test_published_distances_are_those_of_the_evidence() -> None:
    before = json.loads(BY_IMAGE.read_text())["broken"]
    lost = next(image for image, distance in enumerate(before) if distance)
    row.change_json(BY_IMAGE, lambda images: images["broken"].__setitem__(lost, 0.75 * before[lost]))
    (line,) = row.verification()["lines"]
    assert line.startswith(f"image {lost}: broken distance: ")
    row.change_json(BY_IMAGE, lambda images: images.pop("broken"))
    content = row.verification()
    assert (content["of"], content["lines"]) == ("built and published", []), "files without distances stay valid"


def test_elsewhere_margins_may_stray_but_turn_no_verdict() -> None:
    """In other arithmetic a margin has a tolerance; where it lies within that of 0, the verdict is left open."""
    edit_records(lambda record: record["environment"].update(torch="1.0"))
    edit_evidence(lambda margin: margin + 1e-5)
    content = row.verification()
    assert content["lines"] == []
    assert any("last bits of margins and distances: torch was 1.0 and is " in words for words in content["unchecked"])
    assert any("to 0.0001 of the largest logit, which turns no verdict" in one["what"] for one in content["checked"])
    edit_evidence(lambda margin: -margin)
    assert any(line.startswith("image 3: clean margin: ") for line in row.verification()["lines"])


def test_a_damaged_row_or_the_file_of_another_does_not_hold_and_stops_no_other() -> None:
    """Also where the other row's numbers are as they should be."""
    shutil.rmtree("work/tiny")
    other = "Tiny2026Linear-aother"
    for folder in (PUBLISHED, PUBLISHED / "images"):
        shutil.copy(folder / f"{NAME}.json", folder / f"{other}.json")
    for change, words in (
        (lambda: None, f"{PUBLISHED / other}.json is of the row '{NAME}', not of {other}"),
        (BY_IMAGE.with_name(f"{other}.json").unlink, str(BY_IMAGE.with_name(f"{other}.json"))),
    ):
        change()
        result = rvb("verify", "--all")
        assert str(result.exception) == f"1 of 2 rows do not hold: {other}"
        assert f"{other}: {words}" in result.output
        assert f"{NAME} on tiny, published: holds as far as it was checked" in result.output
    damaged, whole = json.loads(rvb("verify", other, NAME, "--json").stdout)
    assert (damaged["row"], damaged["of"], damaged["tier"], damaged["checked"]) == (other, "published", "claimed", [])
    assert (whole["row"], whole["contradictions"]) == (NAME, [])


def test_what_cannot_be_asked_for_is_one_line() -> None:
    for arguments, words in {
        (): "name rows to verify, <submission>-<variant>, or --all",
        (NAME, "--all"): "leave out rows",
        (NAME, "--write"): "--write keeps what --adversarial breaks",
        ("Tiny2026Linear-smal",): "did you mean 'Tiny2026Linear-small'?",
    }.items():
        assert words in error("verify", *arguments)
    shutil.rmtree(PUBLISHED)
    assert "no row of tiny is published; nothing was verified" in rvb("verify", "--all").output
    shutil.rmtree("work/tiny")
    assert error("verify", NAME) == f"{NAME} is neither built here nor published on tiny; run `rvb repro {NAME}`"


def test_of_a_row_that_changed_only_the_record_itself_is_checked() -> None:
    edit(SUBMISSION, "certificate: {name: lipschitz}", "certificate: {name: local}")
    content = row.verification()
    assert "submission.yaml asks for another model or certificate today" in content["unchecked"][0]
    assert content["tier"] == "claimed"
    edit(TRACK, "version: 1", "version: 2")
    assert "computed by version 1 of the track, which is at 2 today" in row.verification()["unchecked"][0]
    shutil.rmtree(SUBMISSION.parent)
    assert "unknown submission 'Tiny2026Linear'" in row.verification()["unchecked"][0]


@pytest.mark.parametrize(("exact", "named", "undecided"), [(True, {0, 1, 2, 4}, set()), (False, {2, 4}, {0, 1})])
def test_a_verdict_on_which_rounding_decides_is_left_open_elsewhere(exact, named, undecided) -> None:
    """Image 0 is right by a hair and recorded as wrong, 1 has two other classes a hair apart, 2 is far off, 3 is as recorded,
    4 is off by a hundredth.
    """
    rows = [[1.00001, 1.0, 0.0], [0.0, 1.00001, 1.0], [2.0, 1.0, 0.0], [2.0, 1.0, 0.0], [1.01, 1.0, 0.0]]
    findings = Verification(track="tiny", row="row", of="built", trust="rebuilt")
    fixed = Through(torch.nn.Identity(), after=lambda z, x: torch.tensor(rows).repeat(len(x) // 5, 1))
    evaluator = Evaluator(fixed, torch.zeros(5, 1, 2, 2), torch.zeros(5, dtype=torch.long), 5, exact, findings)
    seen = evaluator.verdicts(evaluator.images)
    evidence = pa.table(
        {
            "clean_prediction": [1, 2, 1, 0, 1],
            "clean_margin": np.array([-0.00001, *seen.margin[1:2], -1.0, *seen.margin[3:4], -0.01], dtype=np.float32),
        }
    )
    evaluator.compare(evidence, "clean_", seen, np.ones(5, dtype=bool))
    assert {one.image for one in findings.contradictions} == named
    assert evaluator.undecided == undecided


def test_a_records_images_smoothing_and_corruptions_are_as_its_track_asks() -> None:
    record = tiny_record.changed("attacks", to=[])
    own = {"smoothing": record.smoothed.rules, "corruptions": record.corrupted.rules}
    more = {"evaluation": tracks.load("digits").evaluation.model_copy(update={"images": 101})}
    for rules, words in ((own, []), (more, ["number of images and the seed", "smoothing", "corruptions"])):
        findings = Verification.begin(record, "built")
        track = tracks.load("digits").model_copy(update={"suites": {}, **rules})
        check_rules(record, SimpleNamespace(track=track, settings=record.settings), findings)
        assert [one.what for one in findings.contradictions] == [f"{name} are not as track tiny asks" for name in words]


@pytest.mark.parametrize("reasons", [(RANDOM + ": two passes differ",), ("deterministic",)])
def test_of_a_random_model_predictions_are_not_compared(reasons) -> None:
    edit_records(lambda record: record.update(division="open", division_reasons=reasons))
    edit(SUBMISSION, "variants:", "division: open\nvariants:")
    edit_evidence(lambda margin: margin * 1.5)
    content = row.verification()
    random = reasons[0].startswith(RANDOM)
    assert any(line.startswith("image 3: clean margin: ") for line in content["lines"]) is not random
    assert any("the model is random, another pass says otherwise" in words for words in content["unchecked"]) is random
    if random:
        assert content["tier"] == "claimed"
        row.change_tensors(STORED, lambda images: images[FGSM][4].fill_(0.5))
        assert any(line.startswith(f"image 4: {FGSM} ball: ") for line in row.verification()["lines"])


def _of(built: SimpleNamespace, number: int) -> tuple[int, int]:
    if number < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return number, os.getpid()


def test_each_record_is_verified_in_a_process_of_its_own_in_order() -> None:
    built = SimpleNamespace(record=SimpleNamespace(row="Tiny2026Linear-small"))
    made = list(verify._in_forks(_of, [(built, number) for number in range(5)], 2))
    assert [number for number, _ in made] == [0, 1, 2, 3, 4]
    assert len({os.getpid(), *(process for _, process in made)}) == 6
    with pytest.raises(BenchmarkError, match=r"^Tiny2026Linear-small: the process that verifies it was killed"):
        list(verify._in_forks(_of, [(built, 0), (built, -1)], 2))
