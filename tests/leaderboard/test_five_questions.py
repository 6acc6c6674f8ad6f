"""Five questions that the published digits' site answers in a real browser, from the board on, in two clicks at most."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import site_rows
from browsers import click, needs_chromium, seen
from safetensors.numpy import save_file

from benchmark.loading import tracks
from benchmark.results import study_table
from benchmark.results.per_image import PerImage
from benchmark.results.record import Record, headline
from leaderboard import build
from leaderboard.rank import rank

pytestmark = [pytest.mark.browser, needs_chromium]
TRACK = tracks.load("digits")
ROWS = LOFAST, CERTVIT, FAST = "Havens2024LoFAST-mean_pool", "Gupta2023CertViT-vit_l2_margin", "Wong2020Fast-linf"
ROBUST, ATTACK = "robust L2 0.5", "autoattack-L2-0.5"


def published(row: str) -> tuple[Record, PerImage]:
    """With one attack alone, which stands for all in the evidence below."""
    folder = build.PUBLISHED / "digits"
    record = Record.model_validate_json((folder / f"{row}.json").read_text())
    images = PerImage.model_validate_json((folder / "images" / f"{row}.json").read_text())
    attacks = tuple(attack for attack in record.attacks if attack.id == ATTACK)
    return record.model_copy(update={"pictures": (), "attacks": attacks}), images


def right(images: PerImage, name: str) -> np.ndarray:
    return np.array([digit == "1" for digit in images.scores[name]])


def write(work: Path, record: Record, images: PerImage) -> None:
    """The Record, with evidence of what is published by image: verdicts under one attack, certified radii."""
    clean, held = right(images, "clean"), right(images, ATTACK)
    folder = work / record.row / "record"
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(record.model_dump_json())
    columns = {
        "image": np.arange(record.n),
        "label": np.zeros(record.n, int),
        "clean_prediction": np.where(clean, 0, 1),
        "clean_margin": np.where(clean, 1.0, -1.0),
        f"{ATTACK}:success": clean & ~held,
        f"{ATTACK}:prediction": np.where(held, 0, 1),
        f"{ATTACK}:l2": np.where(clean & ~held, 0.5, 0.0),
    }
    if record.certified:
        columns["certified_l2"] = np.array(images.radii["certified"])
    pq.write_table(pa.table(columns), folder / "evidence.parquet")
    save_file({"clean": np.zeros((record.n, 1, 8, 8), np.float32)}, folder / "images.safetensors")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    found = [published(row) for row in ROWS]
    work = tmp_path_factory.mktemp("work")
    for record, images in found:
        write(work, record, images)
    scores = {record.row: images.scores for record, images in found}
    studies = study_table.read(build.PUBLISHED / "digits" / "studies")
    site = tmp_path_factory.mktemp("site")
    rows = rank([record for record, _ in found], TRACK, scores, studies)
    site_rows.render(site, TRACK, rows, work, images=scores)
    (site / "times.js").write_text("const TIMES = {};\n")
    return f"file://{site}/index.html"


def test_which_row_is_most_robust_in_l2_and_is_that_settled(board) -> None:
    from selenium.webdriver.support.ui import Select

    Select(board.find_element("id", "sort")).select_by_visible_text("AutoAttack L2 0.5")
    best = max((published(row)[0] for row in ROWS), key=lambda r: headline(r)[ROBUST].value)
    first = seen(board, ".board tbody tr")
    assert best.title in first
    assert f"{100 * headline(best)[ROBUST].value:.1f}" in first
    assert "rank 1–2" in first, "another row is tied with it"


def test_where_a_row_loses_between_attacked_and_certified(board) -> None:
    click(board, f'[data-row="{LOFAST}"] th > a')
    _, images = published(LOFAST)
    clean, held, certified = (right(images, name) for name in ("clean", ATTACK, "certified L2 0.5"))
    line = seen(board, ".settled tbody tr:nth-child(3)")
    between = int((held & ~certified).sum())
    assert line == f"0.5 {certified.sum()} {between} {int((clean & ~held).sum())} {int((~clean).sum())}"
    assert f"l2 0.5: {held.sum():.1f}% not broken, {certified.sum():.1f}% certified" in (
        board.find_element("css selector", "#sandwich .drawn").get_attribute("aria-label")
    )


def test_which_image_separates_two_rows(board) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    click(board, 'header nav a[href$="compare/index.html"]')
    click(board, f'.pairs a[href*="{LOFAST}"][href*="{FAST}"]')
    found = WebDriverWait(board, 30).until(lambda page: page.find_elements("css selector", ".apart"))
    one, other = (right(published(row)[1], "robust Linf 0.15") for row in (LOFAST, FAST))
    listed = {int(a.text) for part in found for a in part.find_elements("css selector", "a")}
    assert listed == set(np.flatnonzero(one != other).tolist())


def test_what_the_paper_claims_for_table_1_and_what_came_out(board) -> None:
    click(board, f'[data-row="{CERTVIT}"] th small a')
    click(board, '.contents a[href="#study-table1"]')
    assert board.execute_script("return location.hash") == "#study-table1"
    (study,) = [
        one
        for one in study_table.read(build.PUBLISHED / "digits/studies")
        if one.result.id == "Gupta2023CertViT-table1"
    ]
    text = seen(board, "#study-table1 .claims")
    table = study_table.table(study)
    place = [column.label for column in table.columns].index("clean")
    rebuilt = {line.cell: line.entries[place].mean for line in table.lines}
    for cell, numbers in study.study.claims.items():
        assert f"{cell} {100 * numbers['clean']:.1f} {100 * rebuilt[cell]:.1f}" in text


def test_which_command_rebuilds_this_number(board) -> None:
    click(board, f'[data-row="{FAST}"] th > a')
    click(board, '.contents a[href="#repeat"]')
    assert f"rvb repro {FAST} --track digits" in seen(board, "#repeat ~ .commands")
