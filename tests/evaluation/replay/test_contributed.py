"""`rvb verify --adversarial`: what contributed images break, what lowers a published number, and what is refused."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
import tiny_verified as row
import torch
from command import tiny_error as error
from command import tiny_rvb as rvb
from safetensors.torch import load_file, save_file
from tiny_verified import BY_IMAGE, NAME, PGD, PUBLISHED, RECORD, WEIGHTS
from typer.testing import Result

from benchmark.pipeline import generate
from benchmark.specs import tracks
from benchmark.specs.rows import load_rows

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("verified_row")]
FILE, BROKEN = Path("contributed.safetensors"), PUBLISHED / "broken" / f"{NAME}.json"


def bring(images: dict[str, torch.Tensor], credit: str | None = "Jane Doe") -> None:
    save_file(images, FILE, None if credit is None else {"credit": credit})


def number(name: str) -> str:
    return json.loads(BY_IMAGE.read_text())["scores"][name]


def near() -> list[int]:
    """Images that are robust at l2 0.5 although nearer than that to the boundary."""
    distance, right = row.nearest(*row.clean())[1], number("robust L2 0.5")
    return [image for image in range(20) if right[image] == "1" and distance[image] < 0.49]


def broken(*indices: int) -> torch.Tensor:
    """The clean images, but some, which are broken at the nearest boundary."""
    images, labels = row.clean()
    images[[*indices]] = row.nearest(images, labels)[0][[*indices]]
    return images


def verify(*arguments: str) -> Result:
    return rvb("verify", NAME, "--adversarial", str(FILE), *arguments)


def judged(*arguments: str) -> dict:
    return json.loads(verify("--json", *arguments).stdout)


def refused(*arguments: str) -> str:
    return error("verify", NAME, "--adversarial", str(FILE), *arguments)


def bring_one(credit: str | None = "Jane Doe") -> int:
    """Bring an image that breaks the row at l2 0.5."""
    image, *_ = near()
    bring({"L2 0.5": broken(image)}, credit)
    return image


def test_images_that_break_nothing_new() -> None:
    bring({"L2 0.5": load_file("work/tiny/Tiny2026Linear-small/record/images.safetensors")[PGD]})
    content = judged()
    assert content["broken"]["L2 0.5"] == number("clean").count("1") - number(PGD).count("1") > 0
    assert content["contribution"]["images"] == []
    assert all(one["lost"] == [] and one["before"] == one["after"] for one in content["robust"])
    assert "break nothing that still stands; nothing written" in refused("--write")
    assert not BROKEN.parent.exists()


def test_one_more_image_lowers_the_number_with_its_credit() -> None:
    def stages() -> list[str]:
        definitions = generate.definitions(tracks.load("tiny"), load_rows("tiny"))
        return definitions[generate.board_file("tiny")]["leaderboard"]["deps"]

    image, before = bring_one(), number("robust L2 0.5").count("1")
    told = verify()
    assert told.exit_code == 0
    assert f"{NAME}: robust L2 0.5: {before} -> {before - 1} images; newly broken: images {image}\n" in told.output
    assert not BROKEN.parent.exists(), "only --write writes"
    assert str(BROKEN.parent) not in stages()
    assert verify("--write").exit_code == 0
    assert str(BROKEN.parent) in stages(), "the board is rendered again"
    (contributed,) = json.loads(BROKEN.read_text())["contributions"]
    record = json.loads(RECORD.read_text())
    assert (contributed["credit"], contributed["weights"]) == ("Jane Doe", record["sha256"]["weights"])
    (one,) = contributed["images"]
    assert (one["image"], one["threat"], one["lost"], one["certified"]) == (image, "L2 0.5", ["L2 0.5"], 0)
    assert one["margin"] <= 0 < one["l2"] <= 0.5
    assert "break nothing that still stands" in refused("--write"), "it is known already"
    assert json.loads((PUBLISHED / f"{NAME}.json").read_text())["robust"][1]["accuracy"]["count"] == before
    for told in (rvb("board"), rvb("board", "--published")):
        assert f"{100 * (before - 1) / 20:.1f}" in told.output
        assert f"Lowered by adversarial images that others contributed: {NAME} (Jane Doe)" in told.output
    told = rvb("show", NAME)
    assert f"{before - 1} of 20" in told.output
    assert "lowered by adversarial images that others contributed: Jane Doe" in told.output
    assert rvb("regress", "--published").exit_code == 0
    assert rvb("verify", NAME).exit_code == 0, "the Record stays as it was measured"
    shutil.rmtree("work/tiny")
    assert f"{NAME}: robust L2 0.5: {before - 1} -> {before - 1} images" in verify().output, "by the published weights"
    FILE.unlink()
    assert "contributed.safetensors is no file" in refused()


def test_an_image_counts_in_every_ball_that_it_lies_in() -> None:
    """Searched at l2 0.8, it counts at 0.5 by its distance; one that is farther away does not."""
    image, *_ = near()
    bring({"L2 0.8": broken(image)})
    assert [(one["threat"], one["lost"]) for one in judged()["robust"]] == [("Linf 0.05", []), ("L2 0.5", [image])]
    far, robust = row.nearest(*row.clean())[1], number("robust L2 0.5")
    bring({"L2 2": broken(next(i for i in range(20) if robust[i] == "1" and 0.5 < far[i] < 2))})
    content = judged()
    assert content["broken"]["L2 2"] >= 1
    assert all(one["lost"] == [] for one in content["robust"])


def test_the_first_who_breaks_an_image_is_credited() -> None:
    first, second, *_ = near()
    bring({"L2 0.5": broken(first)})
    assert verify("--write").exit_code == 0
    bring({"L2 0.5": broken(first, second)}, "John Roe")
    assert [one["lost"] for one in judged("--write")["robust"]] == [[], [second]]
    assert [one["credit"] for one in json.loads(BROKEN.read_text())["contributions"]] == ["Jane Doe", "John Roe"]
    assert "Jane Doe, John Roe" in rvb("board").output


def test_a_contradicted_certificate_is_an_alarm() -> None:
    image = bring_one()
    radius = float(row.nearest(*row.clean())[1][image]) + 0.01
    path = PUBLISHED / "images" / f"{NAME}.json"
    row.change_json(path, lambda images: images["radii"]["certified"].__setitem__(image, radius))
    message = refused("--write")
    start = f"{NAME}: 1 certified radii are contradicted; image {image} is certified at l2 {radius:.6g}"
    assert message.startswith(start)
    assert message.endswith("the certificate is wrong")
    assert f"ALARM: {NAME}: image {image}: certified at l2 {radius:.6g}, broken at " in verify().output
    assert json.loads(BROKEN.read_text())["contributions"][0]["images"][0]["certified"] == radius
    table = rvb("board", "--published").output
    assert "–" in next(line for line in table.splitlines() if NAME in line), "nothing counts as certified any more"


def test_what_was_contributed_against_other_weights_counts_no_more() -> None:
    bring_one()
    assert verify("--write").exit_code == 0
    before = number("robust L2 0.5").count("1")
    row.change_json(PUBLISHED / f"{NAME}.json", lambda record: record["sha256"].update(weights="0" * 64))
    assert f"{100 * before / 20:.1f}" in rvb("board", "--published").output
    assert f"{BROKEN} holds images by Jane Doe of other weights" in error("regress", "--published")
    assert "the Record's own weights are not in work/tiny; run `rvb repro" in refused("--write")
    (PUBLISHED / f"{NAME}.json").unlink()
    words = "holds images of a row that is not published; bring them again, or delete the file"
    assert words in error("regress", "--published")


def test_only_what_is_published_can_be_lowered_and_only_the_records_weights_are_asked() -> None:
    bring_one(credit=None)
    assert "no `credit`, who is to be named" in refused("--write")
    (PUBLISHED / f"{NAME}.json").unlink()
    assert judged()["contribution"]["credit"] == "unnamed"
    assert "there is no number to lower: leave out --write" in refused("--write")
    row.change_tensors(WEIGHTS, lambda weights: weights["1.bias"].add_(1))
    assert "the Record's own weights are not in work/tiny" in refused()


def moved(to: float) -> torch.Tensor:
    """The clean images with the first pixel of image 2 set."""
    images = row.clean()[0].clone()
    images[2, 0, 0, 0] = to
    return images


IN = "of contributed.safetensors"


@pytest.mark.parametrize(
    ("name", "images", "words"),
    [
        ("Linf 0.05", lambda: moved(to=0.5), f"'Linf 0.05' {IN} left its Linf 0.05 ball by 0.45 at image 2"),
        ("L2 0.5", lambda: moved(to=-0.1), f"'L2 0.5' {IN} left [0, 1]: pixels from -0.1 to 1"),
        ("L2 0.5", lambda: moved(to=float("nan")), f"'L2 0.5' {IN} returned pixels that are not finite"),
        ("L2 0.5", lambda: row.clean()[0][:5], "tensor 'L2 0.5' is F32 (5, 1, 8, 8); float32 (20, 1, 8, 8) is needed"),
        ("L2 0.5", lambda: row.clean()[0].double(), "tensor 'L2 0.5' is F64 (20, 1, 8, 8)"),
        ("L2 0.50", lambda: row.clean()[0], "names no ball; name it such as 'Linf 0.05'; did you mean 'L2 0.5'?"),
        *((name, lambda: row.clean()[0], "names no ball") for name in ("L2 inf", "L3 0.5", "pgd", "Linf 2")),
    ],
)
def test_images_that_are_none_are_refused_in_one_line(name, images, words) -> None:
    bring({name: images()})
    assert words in refused()


def test_files_that_are_none_are_refused_in_one_line() -> None:
    assert "contributed.safetensors is no file" in refused()
    bring({})
    assert "holds no tensor; give one for each ball, such as 'Linf 0.05'" in refused()
    for credit in ("two\nlines", "x" * 121, "\x1b[31m"):
        bring({"L2 0.5": row.clean()[0]}, credit)
        assert "`credit` in its metadata has to be one line of at most 120 characters" in refused()
    FILE.write_bytes(pickle.dumps({"L2 0.5": [0.5]}))
    assert "contributed.safetensors is no safetensors file (" in refused()
    torch.save({"L2 0.5": row.clean()[0]}, FILE)
    assert "is no safetensors file (" in refused()
    with FILE.open("wb") as file:
        file.truncate(10**9)
    assert "contributed.safetensors has 1,000,000,000 bytes; 32 tensors of (20, 1, 8, 8) float32 take at most" in refused()
    FILE.unlink()
    os.mkfifo(FILE)
    assert "is no file" in refused(), "and nothing waits for it"
