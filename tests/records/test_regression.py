"""Published Records against built ones: each kind of difference is found, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tiny_record
from tiny_record import built, changed, proportion

from benchmark.records.accuracy import Proportion
from benchmark.records.beside import AttentionResult, WithoutAttention
from benchmark.records.per_image import contradictions
from benchmark.records.record import Record
from benchmark.records.regression import FALSE_ALARMS, Built, Line, RowComparison, compare_row, compare_rows, differences

HERE = {"processor": "Some Chip (family 1, model 2)", "blas": "MKL", "pyarrow": "26.0"}
ELSEWHERE = HERE | {"processor": "Other Chip"}
NATIVE = ("environment", "arithmetic")

PUBLISHED = changed()
KEPT = built(PUBLISHED, HERE)
NATIVE_KEPT = built(changed(*NATIVE, to="native"), HERE)


def outside(row: RowComparison) -> list[str]:
    return [line.metric for line in row.outside]


def elsewhere(*flipped: tuple[str, int], record: Record | None = None) -> Built:
    """The row trained again in native arithmetic on another processor: other weights."""
    made = record or changed(*NATIVE, to="native")
    return built(with_digests(made, weights="w2", evidence="e2"), ELSEWHERE, *flipped)


def with_digests(record: Record, **digests: str) -> Record:
    return record.model_copy(update={"sha256": record.sha256 | digests})


def decided(row: Built) -> RowComparison:
    name = row.record.row
    (comparison,) = compare_rows({name: NATIVE_KEPT}, {name: row}, [name])
    return comparison


def line(row: RowComparison, metric: str) -> Line:
    (chosen,) = [line for line in row.lines if line.metric == metric]
    return chosen


def test_the_same_row_is_the_same_in_everything() -> None:
    same = compare_row(KEPT, KEPT)
    assert {line.verdict for line in same.lines} == {"same"}
    assert (same.failed, same.notes) == (False, ())
    assert {line.metric: line.published for line in same.lines if " of " in line.published} == {
        "clean": "95 of 100", "robust Linf 0.15": "40 of 100", "certified L2 0.1": "61 of 100",
        "smoothed L2 0.1": "61 of 100", "corrupted": "150 of 200", "autoattack-Linf-0.15": "42 of 100",
        "smoothed clean": "90 of 100", "corrupted: fog": "150 of 200",
        "autoattack-Linf-0.15 after apgd-ce": "50 of 100", "autoattack-Linf-0.15 after square": "42 of 100",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "to", "metric"),
    [
        (("clean",), proportion(94), "clean"),
        (("robust", 0, "accuracy"), proportion(41), "robust Linf 0.15"),
        (("certified", 0, "accuracy"), proportion(60), "certified L2 0.1"),
        (("smoothed", "certified", 0, "accuracy"), proportion(62), "smoothed L2 0.1"),
        (("smoothed", "clean"), proportion(91), "smoothed clean"),
        (("smoothed", "rules", "sigma"), 0.25, "smoothing"),
        (("corrupted", "accuracy"), proportion(151, 200), "corrupted"),
        (("corrupted", "corruptions", 0, "mean"), proportion(149, 200), "corrupted: fog"),
        (("corrupted", "rules", "severities"), [1, 3], "corruptions"),
        (("attacks", 0, "accuracy"), proportion(43), "autoattack-Linf-0.15"),
        (("attacks", 0, "remaining", "apgd-ce"), 51, "autoattack-Linf-0.15 after apgd-ce"),
        (("attacks", 0, "spec", "seed"), 1, "autoattack-Linf-0.15: parameters"),
        (("attacks", 0, "spec", "parameters"), {"steps": 50}, "autoattack-Linf-0.15: parameters"),
        (("attacks", 0, "engine"), "reference", "autoattack-Linf-0.15: parameters"),
        (("division",), "open", "division"),
        (("trust",), "re-evaluated", "trust"),
        (("seed",), 1, "seed"),
        (("parameters",), 1235, "parameters"),
        (("flops",), 5679, "FLOPs"),
        (("settings", "training", "epochs"), 2, "settings"),
        (("sha256", "data test"), "d2", "sha256 of data test"),
        (("sha256", "weights"), "w2", "sha256 of weights"),
        (("sha256", "evidence"), "e2", "sha256 of evidence"),
        (("sha256", "adversarial images standard"), "a2", "sha256 of adversarial images standard"),
    ],
)
def test_any_single_difference_is_found_in_the_same_arithmetic(path, to, metric) -> None:
    comparison = compare_row(KEPT, replace(KEPT, record=changed(*path, to=to)))
    assert (outside(comparison), comparison.failed) == ([metric], True)


def test_an_image_whose_verdict_flipped_or_whose_radius_fell_is_named_even_where_the_count_stayed() -> None:
    comparison = compare_row(KEPT, built(PUBLISHED, HERE, ("clean", 7), ("clean", 97)))
    assert comparison.outside == [Line("images of clean", "image 7: 1", "image 7: 0", "OUTSIDE", 2)]
    assert KEPT.images
    radii = list(KEPT.images.radii["certified"])
    radii[3] *= 0.99
    images = KEPT.images.model_copy(update={"radii": KEPT.images.radii | {"certified": tuple(radii)}})
    (radius,) = compare_row(KEPT, replace(KEPT, images=images)).outside
    assert (radius.metric, radius.built[:14]) == ("certified radii", "image 3: 0.291")


def test_images_against_certified_robust_and_clean_are_named() -> None:
    for name, image, words in (
        ("robust Linf 0.15", 99, "image 99: robust Linf 0.15, but wrong when clean"),
        ("clean", 3, "image 3: certified at l2 0.294, but wrong when clean"),
    ):
        problems = contradictions(PUBLISHED, tiny_record.images(PUBLISHED, (name, image)))
        assert words in [problem.words for problem in problems]
    assert KEPT.images
    for at, lines in ((0.293, 1), (0.295, 0)):
        near = KEPT.images.model_copy(update={"broken": (None, None, None, at, *[None] * 96)})
        words = "image 3: certified at l2 0.294, but an adversarial image lies at 0.293"
        assert [problem.words for problem in contradictions(PUBLISHED, near)].count(words) == lines


def test_portable_arithmetic_is_the_same_on_every_processor() -> None:
    assert differences(KEPT, replace(KEPT, machine=ELSEWHERE | {"capability": "AVX2"})) == []
    other = differences(KEPT, replace(KEPT, machine=ELSEWHERE | {"blas": "another"}))
    assert other == ["blas was MKL and is another"]
    (other,) = differences(NATIVE_KEPT, replace(NATIVE_KEPT, machine=ELSEWHERE))
    assert other == "processor was Some Chip (family 1, model 2) and is Other Chip"


@pytest.mark.parametrize(
    ("published", "other", "why"),
    [
        (replace(KEPT, machine={}), PUBLISHED, "it is not known which machine published it"),
        (KEPT, changed("environment", "torch", to="2.16.0"), "torch was 2.15.0 and is 2.16.0"),
        (KEPT, changed("environment", "torch (certify)", to="2.16.0"), "torch (certify) was unknown and is 2.16.0"),
        (KEPT, changed("environment", "python", to="3.12.7"), "python was 3.11 and is 3.12"),
        (KEPT, changed("environment", "threads", to="2"), "threads was 1 and is 2"),
        (KEPT, changed(*NATIVE, to="native"), "arithmetic was portable and is native"),
    ],
)
def test_only_the_same_arithmetic_and_versions_owe_the_same_bytes(published, other, why) -> None:
    comparison = compare_row(published, built(other, HERE))
    assert comparison.notes == (f"is compared by chance, since {why}",)
    assert "sha256 of weights" not in {line.metric for line in comparison.lines}


def test_code_pythons_patches_and_other_writers_of_evidence_are_no_failure() -> None:
    patterns = AttentionResult.model_construct(mean=WithoutAttention(clean=PUBLISHED.clean, changed=0))
    for other, pyarrow, notes in (
        (with_digests(PUBLISHED, **{"code train": "c2", "code x": "c3"}), "26.0", ("was built by other code: train, x",)),
        (with_digests(changed("environment", "python", to="3.11.2"), evidence="e2"), "27.0", ()),
        (with_digests(changed("environment", "robust-vit-bench", to="9.0"), evidence="e2"), "27.0", ()),
        (with_digests(PUBLISHED.model_copy(update={"attention": patterns}), evidence="e2"), "26.0", ()),
    ):
        comparison = compare_row(KEPT, built(other, HERE | {"pyarrow": pyarrow}))
        assert (comparison.failed, comparison.notes) == (False, notes)


def test_chance_may_flip_images_both_ways_and_a_one_sided_change_fails() -> None:
    def robust(first: int, count: int) -> RowComparison:
        return decided(elsewhere(*(("robust Linf 0.15", image) for image in range(first, first + count))))

    places = [*range(10), *range(95, 100)]
    assert not decided(elsewhere(*(("clean", image) for image in places))).failed
    few, many, better = robust(0, 8), robust(0, 20), robust(40, 20)
    assert (line(few, "robust Linf 0.15").verdict, line(few, "robust Linf 0.15").changed) == ("within", 8)
    assert outside(many) == outside(better) == ["robust Linf 0.15"]
    assert line(many, "robust Linf 0.15").p == pytest.approx(2**-19)


def test_of_the_same_weights_one_image_may_differ() -> None:
    other = changed(*NATIVE, to="native")
    for count, metrics in ((94, []), (93, ["clean"])):
        record = other.model_copy(update={"clean": other.clean.model_copy(update={"count": count})})
        flipped = [("clean", image) for image in range(95 - count)]
        images = tiny_record.images(other, *flipped)
        assert outside(decided(Built(record, images, ELSEWHERE))) == metrics

    def attacked(count: int, machine: dict[str, str]) -> Built:
        """The row with 20 attacked images, `count` of them robust."""
        result = other.robust[0].model_copy(update={"accuracy": Proportion.of(count, 20)})
        images = tiny_record.images(other)
        scores = images.scores | {"robust Linf 0.15": "1" * count + "0" * (20 - count)}
        row = other.model_copy(update={"robust": (result,)})
        return Built(row, images.model_copy(update={"scores": scores}), machine)

    for count, metrics in ((9, []), (8, ["robust Linf 0.15"])):
        assert outside(compare_row(attacked(10, HERE), attacked(count, ELSEWHERE))) == metrics


@pytest.mark.slow
def test_the_rate_of_false_alarms_of_the_whole_table_is_as_stated() -> None:
    """Each image that changed became better or worse by a fair coin: no more tables fail than the stated share."""
    stream, tables, alarms = np.random.default_rng(0), 200, 0
    counts = {"clean": 95, "robust Linf 0.15": 40, "certified L2 0.1": 61, "smoothed clean": 90}
    for _ in range(tables):
        flipped = []
        for name, count in counts.items():
            worse = stream.binomial(8, 0.5)
            flipped += [(name, image) for image in range(worse)]
            flipped += [(name, min(count + image, 99)) for image in range(min(8 - worse, 100 - count))]
        alarms += decided(elsewhere(*flipped)).failed
    assert alarms <= FALSE_ALARMS * tables


def test_a_number_that_one_record_lacks_and_other_data_are_outside() -> None:
    other = with_digests(NATIVE_KEPT.record, **{"data test": "d2"})
    assert outside(decided(elsewhere(record=other))) == ["sha256 of data test"]
    bare = built(changed("certified", to=[]), HERE)
    assert [(line.metric, line.published, line.built) for line in compare_row(KEPT, bare).outside] == [
        ("certified L2 0.1", "61 of 100", "none"), ("images of certified L2 0.1", "100 images", "0 images")
    ]  # fmt: skip
    assert outside(compare_row(bare, KEPT)) == ["certified L2 0.1", "images of certified L2 0.1"]


def test_other_rules_and_other_images_are_one_line_and_no_numbers() -> None:
    for path, to, problem in (
        ("track_version", 2, "is of other rules: track tiny version 1 published, 2 built; publish it again"),
        ("n", 50, "counts other images: n 100 published, 50 built; publish it again"),
    ):
        comparison = compare_row(KEPT, replace(KEPT, record=changed(path, to=to)))
        assert (comparison.lines, comparison.problem) == ((), problem)
