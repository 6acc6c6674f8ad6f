"""Evidence: counting, the Wilson interval, and the sandwich gate."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from benchmark.certificates.smoothing import clopper_pearson_below, radius_below
from benchmark.evaluation import evidence
from benchmark.evaluation.evidence import check_smoothed, proportion
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import tracks

TRACK = tracks.load("digits")
RULES = TRACK.smoothing
PGD, LINF = "autoattack-L2-0.5", "autoattack-Linf-0.15"


def smoothed(count: int, samples: int) -> float:
    """The radius that these counts carry under the digits track's rules."""
    return radius_below(clopper_pearson_below(count, samples, RULES.alpha / RULES.looks), RULES.sigma)


def table(**changes) -> pa.Table:
    """Four images: 0 robust and certified, 1 broken at l2 0.4, 2 broken in Linf at l2 distance 0.9, 3 wrong when clean."""
    columns = {
        "label": [1, 2, 3, 4],
        "clean_prediction": [1, 2, 3, 5],
        "clean_margin": np.array([0.5, 0.4, 0.3, -0.1], dtype=np.float32),
        f"{PGD}:success": [False, True, False, False],
        f"{PGD}:prediction": [1, 9, 3, 5],
        f"{PGD}:margin": np.array([0.4, -0.2, 0.2, -0.1], dtype=np.float32),
        f"{PGD}:linf": [0.0, 0.2, 0.0, 0.0],
        f"{PGD}:l2": [0.0, 0.4, 0.0, 0.0],
        f"{LINF}:success": [False, False, True, False],
        f"{LINF}:prediction": [1, 2, 7, 5],
        f"{LINF}:margin": np.array([0.4, 0.2, -0.2, -0.1], dtype=np.float32),
        f"{LINF}:linf": [0.0, 0.0, 0.15, 0.0],
        f"{LINF}:l2": [0.0, 0.0, 0.9, 0.0],
        "certified_l2": [0.6, 0.3, 0.8, 0.0],
        # image 0 stopped at 500 of 500, 1 at its first look, 2 is certified in the wrong class, 3 undecided
        "smoothed_prediction": [1, 2, 7, -1],
        "smoothed_l2": [smoothed(500, 500), smoothed(121, 125), smoothed(4000, 4000), 0.0],
        "smoothed_candidate": [1, 2, 7, 4],
        "smoothed_count": [500, 121, 4000, 60],
        "smoothed_samples": [500, 125, 4000, 125],
        "smoothed_spent": [600, 4100, 4100, 2100],
    }
    return pa.table(columns | changes)


def test_wilson_interval_is_the_published_one() -> None:
    """Newcombe 1998, table I: 81 of 263 gives .2553 to .3662; 0 of 20 gives 0 to .1611; 1 of 29 gives .0061 to .1718."""
    for count, n, low, high in ((81, 263, 0.2553, 0.3662), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)):
        share = proportion(np.arange(n) < count)
        assert (share.low, share.high, share.count) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5), count)


def robust(evidence_table: pa.Table) -> dict[str, int]:
    return {r.threat.label: r.accuracy.count for r in evidence.robust(evidence_table, TRACK)}


def test_a_consistent_table_passes_and_is_counted() -> None:
    evidence.check_sandwich(table(), "row")
    assert evidence.clean(table()).count == 3
    # at l2 1 the image broken in the Linf ball is lost too, because its l2 distance is 0.9
    assert robust(table()) == {"Linf 0.15": 2, "L2 0.5": 2, "L2 1": 1}
    certified = {c.threat.label: c.accuracy.count for c in evidence.certified(table(), TRACK, "local")}
    assert certified == {"L2 0.1": 3, "L2 0.25": 3, "L2 0.5": 2}


TIED = np.array([0.0, 0.4, 0.3, -0.1], dtype=np.float32)
NOTHING = "; the certificate is wrong and nothing is published"
BROKE = r"\(clean margin \S+\) but {} broke it at l2 \S+ \(margin \S+\)" + NOTHING


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"certified_l2": [0.6, 0.4, 0.8, 0.0]}, "image 1 is certified at l2 0.4 " + BROKE.format(PGD)),
        ({"certified_l2": [0.6, 0.3, 0.9, 0.0]}, "image 2 is certified at l2 0.9 " + BROKE.format(LINF)),
        ({"certified_l2": [0.6, 5.0, 0.8, 0.0]}, "image 1 is certified at l2 5 " + BROKE.format(PGD)),
        # a hair above the radius breaks the image at that radius in the table, so the gate must stop too
        ({f"{PGD}:l2": [0.0, 0.3 + 5e-13, 0.0, 0.0]}, "image 1 is certified at l2 0.3 " + BROKE.format(PGD)),
        ({"certified_l2": [0.6, 0.3, 0.8, 0.1]}, r"image 3 is certified at l2 0\.1 but misclassified when clean \(margin -"),
        ({"clean_margin": TIED}, r"image 0 is certified at l2 0\.6 but misclassified when clean \(margin 0\)"),
        ({"probed L2 0.6": [True, False, False, False]}, r"image 0 .* but a probe broke it within l2 0\.6" + NOTHING),
        *(
            ({column: [wrong, *table()[column].to_pylist()[1:]]}, f"column {column} holds")
            for column in ("certified_l2", "clean_margin", f"{PGD}:l2", f"{LINF}:linf")
            for wrong in (float("nan"), None)
        ),
    ],
)
def test_the_gate_stops_with_index_verdicts_and_margins(changes, words) -> None:
    """At exactly the certified radius too; and by an attack in another norm whose l2 distance is inside."""
    with pytest.raises(BenchmarkError, match=f"^row: .*{words}"):
        evidence.check_sandwich(table(**changes), "row")
    assert evidence.clean(table(clean_margin=TIED)).count == 2


def test_images_that_a_probe_broke_count_as_lost_from_its_radius_on() -> None:
    first, nobody = [True, False, False, False], [False] * 4
    for column, lost in (("probed Linf 0.1", {"Linf 0.15"}), ("probed L2 0.7", {"L2 1"}), ("probed Linf 0.2", set())):
        probed = table(**{column: first, "probed L2 0.01": nobody})
        assert robust(probed) == {name: count - (name in lost) for name, count in robust(table()).items()}
        evidence.check_sandwich(probed, "row")  # image 0 is certified at 0.6


def test_steps_are_merged_and_refused_where_they_disagree() -> None:
    """In the open division an image is right where every step gets it right."""
    shared = table().select(["label", "clean_prediction", "clean_margin"])
    predictions, margins = shared["clean_prediction"].to_pylist(), shared["clean_margin"].to_pylist()
    other = shared.set_column(1, "clean_prediction", pa.array([9, *predictions[1:]]))
    other = other.set_column(2, "clean_margin", pa.array([-0.5, *margins[1:]], pa.float32()))
    relabelled = shared.set_column(0, "label", pa.array([9, 9, 9, 9]))
    attacked = shared.append_column("pgd-L2-1:success", pa.array([True] * 4))
    assert evidence.merge({"attack": shared, "certify": shared})["image"].to_pylist() == [0, 1, 2, 3]
    for second, is_open, words in (
        (other, False, "disagree on the clean prediction"),
        (shared.set_column(2, "clean_margin", other["clean_margin"]), False, "disagree on the clean verdict"),
        (relabelled, True, "disagree on the label"),
    ):
        with pytest.raises(BenchmarkError, match=words):
            evidence.merge({"attack": shared, "smooth": second}, open_division=is_open)
    with pytest.raises(BenchmarkError, match="attack-adaptive and one before it both hold pgd-L2-1:success"):
        evidence.merge({"attack-papers": attacked, "attack-adaptive": attacked})
    steps = {"attack": shared, "smooth": other}
    merged = evidence.merge(steps, open_division=True)
    assert merged["clean_prediction"].to_pylist() == [9, *predictions[1:]]
    assert merged["clean_margin"].to_pylist() == [-0.5, *margins[1:]]
    assert (evidence.unsteady(steps), evidence.unsteady({"a": shared, "b": shared})) == (1, 0)


def test_smoothed_numbers_are_counted_whatever_attacks_did_to_the_model() -> None:
    """0.25 needs 0.2 Phi^-1(p) >= 0.25: 500 of 500 reach it, 121 of 125 reach 0.1; image 2 has the wrong class. Image 1 is
    broken at l2 0.4 and its smoothed version may be certified beyond: no contradiction.
    """
    check_smoothed(table(), RULES, "row")
    result = evidence.smoothed(table(), TRACK.certified_radii, RULES, "G.")
    assert result.clean.count == 2
    assert {c.threat.label: c.accuracy.count for c in result.certified} == {"L2 0.1": 2, "L2 0.25": 1, "L2 0.5": 0}
    assert result.spent == (600 + 4100 + 4100 + 2100) / 4
    assert (result.rules, result.guarantee) == (RULES, "G.")
    counts = {"smoothed_count": [500, 4000, 4000, 60], "smoothed_samples": [500, 4000, 4000, 125]}
    changed = table(smoothed_l2=[0.2, smoothed(4000, 4000), 0.3, 0.0], **counts)
    assert changed["smoothed_l2"][1].as_py() > 0.5
    evidence.check_sandwich(changed, "row")
    check_smoothed(changed, RULES, "row")


@pytest.mark.parametrize(
    "change",
    [
        {"smoothed_l2": [smoothed(500, 500) + 1e-6, 0.1, 0.1, 0.0]},
        {"smoothed_count": [499, 121, 4000, 60]},
        {"smoothed_count": [0, 121, 4000, 60]},
        {"smoothed_count": [501, 121, 4000, 60]},
        {"smoothed_prediction": [2, 2, 7, -1]},
        {"smoothed_prediction": [-1, 2, 7, -1]},
        {"smoothed_l2": [0.0, 0.1, 0.1, 0.0]},
        {"smoothed_l2": [-0.1, 0.1, 0.1, 0.0]},
        {"smoothed_spent": [599, 4100, 4100, 2100]},
        {"smoothed_spent": [4101, 4100, 4100, 2100]},
    ],
)
def test_smoothed_radii_that_their_counts_do_not_carry_stop(change) -> None:
    with pytest.raises(BenchmarkError, match=r"image 0 has smoothed l2 radius .* nothing is published"):
        check_smoothed(table(**change), RULES, "row")
    with pytest.raises(BenchmarkError, match="column smoothed_l2 holds"):
        check_smoothed(table(smoothed_l2=[float("nan"), 0.1, 0.1, 0.0]), RULES, "row")
