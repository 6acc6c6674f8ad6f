"""`rvb verify`: each kind of tampering is named, with its image and both values."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import tiny_verified as row
import torch
from command import tiny_rvb as rvb
from safetensors.torch import load_file, save_file
from tiny_project import edit
from tiny_verified import BY_IMAGE, EVIDENCE, FGSM, IMAGES, NAME, PGD, RECORD, STORED, WEIGHTS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("verified_row")]
FOLDER = "work/tiny/Tiny2026Linear-small"
UNAVAILABLE = "verdicts and certificates: they need the Record's own weights and data"


def starts(start: str, lines: list[str]) -> bool:
    return any(line.startswith(start) for line in lines)


def scores(number: str) -> str:
    return json.loads(BY_IMAGE.read_text())["scores"][number]


def test_a_flipped_verdict_in_the_evidence() -> None:
    image = scores(PGD).index("1")
    assert row.change_column(f"{PGD}:success", image, lambda success: not success) is False
    flipped, lines = f"image {image}: {PGD} success: True -> False", row.verification()["lines"]
    assert flipped in lines
    assert starts("sha256 of evidence", lines)
    assert starts(f"image {image}: {PGD} of an image: 1 -> 0", lines)
    row.sign("evidence", EVIDENCE)
    assert flipped in row.verification()["lines"], "whoever signs it again"


@pytest.mark.parametrize(
    ("column", "to", "what"),
    [
        ("clean_margin", lambda value: float(np.nextafter(np.float32(value), np.float32(9))), "clean margin"),
        ("clean_prediction", lambda value: value + 1, "clean prediction"),
        ("label", lambda value: (value + 1) % 10, "label"),
        (f"{FGSM}:margin", lambda value: float("nan"), f"{FGSM} margin"),
        (f"{FGSM}:linf", lambda value: value + 1e-9, f"{FGSM} Linf distance"),
        (f"{PGD}:l2", lambda value: value + 1e-9, f"{PGD} L2 distance"),
    ],
)
def test_one_value_of_one_image(column, to, what) -> None:
    """A last bit is enough in the same arithmetic, and no other image is named."""
    row.change_column(column, 3, to)
    row.sign("evidence", EVIDENCE)
    lines = row.verification()["lines"]
    assert starts(f"image 3: {what}: ", lines)
    assert {line.partition(": ")[0] for line in lines if line.startswith("image ")} == {"image 3"}


def test_pixels_outside_the_ball_or_the_box_and_none_at_all() -> None:
    def move(images: dict[str, torch.Tensor]) -> None:
        images[FGSM][3, 0, 2, 2] = 0.2 + (images[FGSM][3, 0, 2, 2] < 0.5) * 0.5
        images[FGSM][4] -= 0.01 * (images[FGSM][4] == 0)
        images[FGSM][5, 0, 0, 0] = 1.01
        images[FGSM][7, 0, 0, 0] = float("nan")

    row.change_tensors(STORED, move)
    content = row.verification()
    lines = content["lines"]
    assert any(one["what"].startswith("attacks' images, 20 each") and one["count"] == 2 for one in content["checked"])
    assert starts(f"image 3: {FGSM} ball: Linf 0.05 at most -> 0.", lines)
    assert starts(f"image 3: {FGSM} Linf distance: ", lines)
    assert f"image 4: {FGSM} box: pixels in [0, 1] -> pixels from -0.00999999978 to 1" in lines
    assert any(line.startswith(f"image 5: {FGSM} box: ") and line.endswith(" to 1.00999999") for line in lines)
    assert f"image 7: {FGSM} pixels: in [0, 1] -> not finite" in lines
    assert starts("sha256 of adversarial images more", lines)
    assert {line[6] for line in lines if line.startswith("image ")} == {*"3457"}
    row.sign("adversarial images more", STORED)
    assert starts(f"image 3: {FGSM} ball: ", row.verification()["lines"]), "whoever signs them again"


def test_published_images_are_compared_with_their_source_or_without_it_replayed() -> None:
    row.change_tensors(IMAGES, lambda images: images[PGD][5, 0, 1, 2].fill_(0.625))
    row.change_tensors(IMAGES, lambda images: images["clean"][6, 0, 0, 0].fill_(0.5))
    first, second = row.verification()["lines"]
    assert first == f"image 6: clean in {IMAGES}, pixel 0: 0 -> 0.5"
    assert second.startswith(f"image 5: {PGD} in {IMAGES}, pixel 10: ")
    assert second.endswith(" -> 0.625")
    row.change_tensors(IMAGES, lambda images: images.update(load_file(f"{FOLDER}/attack-papers/images.safetensors")))
    row.change_tensors(IMAGES, lambda images: images["clean"][6, 0, 0, 0].fill_(0))
    shutil.rmtree(f"{FOLDER}/attack-papers")
    assert row.verification()["tier"] == "replayed"
    row.change_tensors(IMAGES, lambda images: images[PGD][5].fill_(0.5))
    lines = row.verification()["lines"]
    assert starts(f"sha256 of adversarial images papers, {IMAGES}: ", lines)
    assert starts(f"image 5: {PGD} ball: L2 0.5 at most -> ", lines)


def test_swapped_weights() -> None:
    row.change_tensors(WEIGHTS, lambda weights: weights["1.bias"].add_(torch.linspace(-1, 1, 10)))
    content = row.verification()
    assert [line.partition(",")[0] for line in content["lines"]] == ["sha256 of weights"]
    assert UNAVAILABLE in content["unchecked"]
    row.sign("weights", WEIGHTS)
    content = row.verification()
    assert sum(" clean margin: " in line for line in content["lines"]) == 20
    assert content["tier"] == "claimed"
    printed = rvb("verify", NAME)
    assert printed.exit_code == 1
    assert f"{NAME}: clean margin: 10 images more (--json names all)" in printed.output
    assert str(printed.exception) == f"1 of 1 rows do not hold: {NAME}"
    save_file({"other": torch.zeros(1)}, WEIGHTS)
    row.sign("weights", WEIGHTS)
    assert any("does not fit the model" in line for line in row.verification()["lines"])


def raise_radius(factor: float) -> int:
    """Raise the largest radius in the evidence, by image and in the Record's digest, as who knows them all would."""
    radii = json.loads(BY_IMAGE.read_text())["radii"]["certified"]
    image = radii.index(max(radii))
    radii[image] *= factor
    row.change_column("certified_l2", image, lambda radius: factor * radius)
    row.change_json(BY_IMAGE, lambda images: images["radii"].update(certified=radii))
    row.sign("evidence", EVIDENCE)
    return image


def test_a_certified_radius_that_was_raised() -> None:
    """Also by a sample that holds it, which the seed draws."""
    image = raise_radius(1.002)
    (line,) = [line for line in row.verification("--sample", "0")["lines"] if "certified l2 radius" in line]
    assert line.startswith(f"image {image}: certified l2 radius: ")
    samples = (bool(row.verification("--sample", "2", "--seed", str(seed))["lines"]) for seed in range(8))
    first = next(samples)
    assert (not first) in samples
    raise_radius(10)
    lines = [line for line in row.verification("--sample", "0")["lines"] if f"image {image}: certified l2 radius: " in line]
    assert any("broken there by pgd (margin -" in line for line in lines)
    row.change_column("certified_l2", image, lambda radius: radius / 10)
    assert starts(f"image {image}: certified radius: ", row.verification()["lines"]), "by image it stays"


def test_an_image_that_is_certified_and_broken() -> None:
    image = next(i for i in range(20) if scores("clean")[i] == "1" and scores(PGD)[i] == "0")
    assert row.change_column("certified_l2", image, lambda _: 0.5) < 0.5
    (gate,) = [line for line in row.verification()["lines"] if "broke it at l2" in line]
    assert gate.startswith(f"image {image} is certified at l2 0.5 (clean margin ")


def test_certified_numbers_without_a_certificate() -> None:
    """No certificate can then be made again, so the numbers would pass."""
    edit("submissions/Tiny2026Linear/submission.yaml", "        certificate: {name: lipschitz}\n", "")
    row.change_json(RECORD, lambda record: record["settings"].update(certificate=None))
    assert "certificate: None -> lipschitz" in row.verification()["lines"]
    row.change_json(RECORD, lambda record: record.update(certificate=None))
    content = row.verification()
    assert content["lines"] == ["certified numbers of a Record without a certificate:  -> "]
    assert content["tier"] == "claimed"


def test_an_attack_of_the_track_that_is_left_out_or_weaker() -> None:
    """By one who leaves it out of the evidence too."""
    table = pq.read_table(EVIDENCE)
    pq.write_table(table.drop_columns([name for name in table.column_names if name.startswith(FGSM)]), EVIDENCE)
    row.sign("evidence", EVIDENCE)
    row.change_json(BY_IMAGE, lambda images: images["scores"].pop(FGSM))
    weaker = {"attack": "fgsm", "norm": "L2", "eps": 0.5, "name": "pgd"}

    def change(record: dict) -> None:
        record["attacks"] = [attack | {"spec": weaker} for attack in record["attacks"] if attack["id"] == PGD]
        record["sha256"].pop("adversarial images more")

    row.change_json(RECORD, change)
    lines = row.verification()["lines"]
    assert [line for line in lines if line.startswith("attack ")] == [
        f"attack {name} is not as track tiny asks:  -> " for name in (FGSM, PGD)
    ]


def test_changed_counts_and_a_narrowed_interval() -> None:
    places = {"robust": "robust Linf 0.05", "certified": "certified L2 0.1", "attacks": PGD}

    def add(count: int, **clean: float) -> None:
        def change(record: dict) -> None:
            for share in (record["clean"], *(record[place][0]["accuracy"] for place in places)):
                share["count"] += count
            record["clean"].update(clean)

        row.change_json(RECORD, change)

    add(1)
    lines = row.verification()["lines"]
    for name in ("clean", *places.values()):
        (share,) = [line for line in lines if line.startswith(f"share of {name}: ")]
        assert " -> " in share
        (counted,) = [line for line in lines if line.startswith(f"{name}: ")]
        before, after = (int(part.split(" of ")[0]) for part in counted.partition(": ")[2].split(" -> "))
        assert before == after + 1
        assert starts(f"{name} is {before} and its images give {after} over 20 images", lines)
    add(-1, low=json.loads(RECORD.read_text())["clean"]["value"])
    assert [line.split(":")[0] for line in row.verification()["lines"]] == ["share of clean", "clean"]


def test_more_attacked_images_than_there_are() -> None:
    name, digits = "robust Linf 0.05", scores("robust Linf 0.05")
    row.change_json(BY_IMAGE, lambda images: images["scores"].update({name: digits + "1111"}))
    row.change_json(RECORD, lambda record: record["robust"][0]["accuracy"].update(n=24))
    assert json.loads(RECORD.read_text())["robust"][0]["threat"] == {"norm": "Linf", "eps": 0.05}
    assert starts(f"{name} counts 24 images of 20", row.verification()["lines"])


def test_evidence_images_and_data_that_lack_a_part() -> None:
    save_file({FGSM: load_file(STORED)[FGSM][:3]}, STORED)
    assert f"{FGSM} images: float32 (20, 1, 8, 8) -> torch.float32 (3, 1, 8, 8)" in row.verification()["lines"]
    save_file({"other": torch.zeros(1)}, STORED)
    assert starts(f"{STORED} cannot be read (", row.verification()["lines"])
    row.change_tensors(Path("work/tiny/data/test.safetensors"), lambda split: split["pixels"][0].fill_(3))
    content = row.verification()
    assert starts("data test: work/tiny/data/test.safetensors changed since", content["lines"])
    assert UNAVAILABLE in content["unchecked"]
    table = pq.read_table(EVIDENCE)
    pq.write_table(table.drop_columns([f"{FGSM}:margin"]), EVIDENCE)
    assert any(f"the evidence has no whole column '{FGSM}:margin'" in line for line in row.verification()["lines"])
    pq.write_table(table.slice(0, 19), EVIDENCE)
    assert "images in the evidence: 20 -> 19" in row.verification()["lines"]
