"""A track that attacks only the first of its images: numbers say of how many, and none is left out unseen."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
import tiny_verified
from command import tiny_rvb as rvb
from stages import run_stage
from tiny_project import Project, built_once, edit
from tiny_verified import BY_IMAGE, EVIDENCE, FGSM, NAME, PGD, RECORD, change_column, change_json, sign, verification

from benchmark.evaluation import evidence as counting
from benchmark.records.per_image import PerImage
from benchmark.records.record import Record
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import tracks
from leaderboard.image_radii import image_radii

pytestmark = pytest.mark.slow

ALL, ATTACKED = 20, 12  # two batches
TRACK = Path("benchmark/tracks/tiny.yaml")


def new(root: Path) -> Project:
    project = tiny_verified.new(root)
    edit(project.root / TRACK, f"images: {ALL}, seed: 0,", f"images: {ALL}, attacked: {ATTACKED}, seed: 0,")
    return project


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return built_once(tmp_path_factory, "attacked", lambda root: tiny_verified.published(root, new))


@pytest.fixture(autouse=True)
def row(trained: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained.copy(tmp_path / "row").root)


def test_each_number_says_of_how_many_images_it_is() -> None:
    record = Record.model_validate_json(RECORD.read_text())
    assert (record.n, record.clean.n) == (ALL, ALL)
    assert {one.accuracy.n for one in (*record.robust, *record.attacks)} == {ATTACKED}
    assert {one.accuracy.n for one in record.certified} == {ALL}
    images = PerImage.model_validate_json(BY_IMAGE.read_text())
    lengths = {name: len(digits) for name, digits in images.scores.items()}
    assert {n for name, n in lengths.items() if name.startswith(("clean", "certified"))} == {ALL}
    assert {n for name, n in lengths.items() if name.startswith(("robust", "fgsm", "pgd"))} == {ATTACKED}
    table = pq.read_table(EVIDENCE)
    assert table.num_rows == ALL
    assert counting.attacked(table) == ATTACKED
    assert table[f"{FGSM}:success"].to_pylist()[ATTACKED:] == [None] * (ALL - ATTACKED)
    assert image_radii(table).n == ATTACKED


def test_the_row_is_replayed_in_a_sandbox_and_its_board_says_it() -> None:
    edit("params.yaml", "wall: none", "wall: full")
    result = rvb("verify", NAME)
    assert result.exit_code == 0, result.output
    counts = {one["what"]: one["count"] for one in verification()["checked"]}
    assert counts["clean predictions and margins, bit for bit"] == ALL
    assert counts[f"attacks' images, {ATTACKED} each: ball, box, distances, predictions, margins, success"] == 2
    assert "Percent of 12 or 20 test images" in rvb("board").output


@pytest.mark.parametrize("names", [[f"{FGSM}:success"], [f"{FGSM}:l2"], [f"{PGD}:margin"], None])
def test_an_attacked_image_that_is_left_out_is_seen(names) -> None:
    every = [n for n in pq.read_table(EVIDENCE).column_names if ":" in n or n.startswith(("probe ", "probed "))]
    for name in names or every:
        change_column(name, ATTACKED - 1, lambda _: None)
    sign("evidence", EVIDENCE)
    assert verification()["lines"]


def test_nor_can_a_record_count_fewer_and_a_broken_certificate_stops_the_row() -> None:
    def fewer(record: dict) -> None:
        for result in (*record["robust"], *record["attacks"]):
            share = result["accuracy"]
            share |= {"n": share["n"] - 1, "value": min(share["count"], share["n"] - 1) / (share["n"] - 1)}

    change_json(RECORD, fewer)
    assert verification()["lines"]
    broken = pq.read_table(EVIDENCE)[f"{PGD}:success"].to_pylist().index(True)
    change_column("certified_l2", broken, lambda _: 5.0)
    with pytest.raises(BenchmarkError, match=rf"image {broken} is certified at l2 5 "):
        counting.check_sandwich(pq.read_table(EVIDENCE), NAME)


def test_a_track_that_attacks_other_images_is_refused() -> None:
    edit(TRACK, f", attacked: {ATTACKED},", ",")
    with pytest.raises(BenchmarkError, match="12 images were attacked where track tiny wants 20"):
        counting.robust(pq.read_table(EVIDENCE), tracks.load("tiny"))
    edit(TRACK, f"images: {ALL},", f"images: {ALL}, attacked: 7,")
    with pytest.raises(BenchmarkError, match="multiple of batch_size"):
        run_stage("attack-papers", *tiny_verified.NAMES)
