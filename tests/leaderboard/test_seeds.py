"""Studies over seeds on the pages: a row's spread beside its intervals, and which rows are one training."""

from __future__ import annotations

import re

import pytest
import site_rows
from seeds_study import published
from site_rows import board_row
from tiny_record import record

from benchmark.records.record import Record
from benchmark.records.reproduced import Reproduced
from benchmark.records.study import PublishedStudy
from benchmark.specs import tracks
from leaderboard.rank import rank
from leaderboard.seeds import belongs_on_page, trainings

TRACK = tracks.load("digits")


def certified_row() -> Record:
    made = record("A", 70, 30, certified=20).model_dump()
    made["settings"]["certificate"] = {"name": "local"}
    return Record.model_validate(made)


def test_each_headline_number_has_its_trainings() -> None:
    kept = trainings([certified_row()], TRACK, [published("A", [70, 60, 80], certified=[20, 30, 10])])["A-v"]
    assert kept.study == "A-v-seeds"
    assert kept.seeds == (0, 1, 2)
    assert kept.spreads.keys() == kept.verdicts.keys() == {
        "clean", "robust Linf 0.15", "robust L2 0.5", "robust L2 1",
        "certified L2 0.1", "certified L2 0.25", "certified L2 0.5",
    }  # fmt: skip
    robust = kept.spreads["robust Linf 0.15"]
    assert (robust.mean, robust.low, robust.high) == (pytest.approx(0.7), 0.6, 0.8)
    assert kept.spreads["certified L2 0.1"].values == (0.2, 0.3, 0.1)
    for name, spread in kept.spreads.items():
        assert [bits.count("1") / 100 for bits in kept.verdicts[name]] == list(spread.values)


def test_a_study_over_seeds_without_verdicts_is_no_such_study() -> None:
    old = published("A", [70, 60]).model_dump()
    for run in old["result"]["runs"]:
        del run["verdicts"]
    assert trainings([record("A", 70, 30)], TRACK, [PublishedStudy.model_validate(old)]) == {}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Two rows of one submission's kind, the first with a study over its seeds that was reproduced."""
    folder, rows = tmp_path_factory.mktemp("seeds"), [certified_row(), record("B", 40, 30)]
    studies = [published("A", [70, 60, 80], certified=[20, 30, 10])]
    for row in rows:
        site_rows.write(row, folder, certified_l2=0.2)
    marks = {"A-v-seeds": Reproduced(commit="a" * 12, date="2026-07-01", what="cell <all>, seed 0")}
    marks["B-v"] = Reproduced(commit="b" * 12, date="2026-07-02", what="row")
    ranked = rank(rows, TRACK, studies=studies)
    site_rows.render(folder / "site", TRACK, ranked, folder, studies=studies, reproduced=marks)
    return folder / "site"


def test_the_board_marks_seeds_under_the_interval_and_says_what_is_one_training(site) -> None:
    index = (site / "index.html").read_text()
    with_seeds, single = board_row(index, "A-v"), board_row(index, "B-v")
    assert re.findall(r'<u style="--x:([0-9.]+)%">', with_seeds.partition("<b>70.0</b>")[2])[:3] == ["70.0", "60.0", "80.0"]
    assert with_seeds.count("<small>60.0–80.0</small>") == 1, "one interval a number"
    assert "<small>3 seeds</small>" in with_seeds
    assert "one training</small>" not in with_seeds
    assert "one training</small>" in single
    assert "<u " not in single
    assert index.count("<dt>seeds</dt>") == 1
    assert "<em>One training</em>" in index


def test_the_study_stands_on_its_own_rows_page_alone(site) -> None:
    pages = [(site / f"models/{row}/index.html").read_text() for row in ("A-v", "B-v")]
    assert "rvb study A-v seeds</code>" in pages[0]
    last = "Last reproduced byte for byte: commit <code>"
    assert f"{last}aaaaaaaaaaaa</code> (2026-07-01), cell &lt;all&gt;, seed 0." in pages[0]
    assert f"<small>{last}bbbbbbbbbbbb</code> (2026-07-02).</small>" in pages[1]
    assert [page.count(last) for page in pages] == [1, 1]
    assert "3 seeds: 70.0, 60.0, 80.0 (mean 70.0)" in pages[0]
    assert 'id="study-' in pages[0]
    assert 'id="study-' not in pages[1]


def test_another_variant_of_the_submission_does_not_show_it() -> None:
    study = published("A", [70, 60])
    other = record("A", 70, 30).model_copy(update={"variant": "w"})
    assert belongs_on_page(study, record("A", 70, 30))
    assert not belongs_on_page(study, other)
