"""What the studies measure is ordered as the mathematics says, on a tiny untrained network."""

from __future__ import annotations

import itertools

import pytest
import torch

from benchmark.specs import methods, tracks

SHAPE = {"patch_size": 4, "width": 8, "depth": 1, "heads": 2, "qk_norm": 2.0, "vo_norm": 0.9, "radius": 1.0}
RADII = (0.01, 0.2)


@pytest.fixture(scope="module")
def measured():
    """The measures, and a network with images that it gets right."""
    torch.manual_seed(0)
    network = methods.method("Havens2024LoFAST").build(tracks.load("digits").data, **SHAPE)
    network = network.eval().requires_grad_(False)
    images = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    return methods.module("Havens2024LoFAST", "measures"), (network, images, network(images).argmax(1))


def ordered(curves: dict[str, list[float]], *names: str) -> None:
    """Each curve nowhere above the next."""
    for lower, upper in itertools.pairwise(names):
        assert all(a <= b * (1 + 1e-9) for a, b in zip(curves[lower], curves[upper], strict=True)), (lower, upper)


@pytest.mark.slow
def test_each_improvement_certifies_no_less_and_none_more_than_pgd_leaves(measured) -> None:
    measures, given = measured
    curves = measures.certified_by(*given, seed=0, radii=RADII)
    ordered(curves, *measures.IN_TURN, "margin gradient", "PGD leaves")
    assert curves["margin gradient"][0] > 0


def test_a_network_with_the_patterns_of_the_same_image_keeps_its_predictions(measured) -> None:
    measures, (network, images, _) = measured
    alike = images[:1].expand_as(images)
    labels = network(alike).argmax(1)
    use = measures.pattern_use(network, alike, labels, seed=0, training=(alike, labels))
    assert use == {"mean pattern": 1.0, "another image's": 1.0}
    assert measures.pattern_use(network, images, labels - 1, seed=0, training=(images, labels))["mean pattern"] < 1


def test_no_image_is_certified_of_a_network_that_gets_none_right(measured) -> None:
    measures, (network, images, labels) = measured
    for measure, name in ((measures.certified_by, "margin gradient"), (measures.certified_at, "LoFAST")):
        assert measure(network, images, labels - 1, seed=0, radii=RADII)[name] == [0.0, 0.0]
    with pytest.raises(ValueError, match="gets no image right"):
        measures.margin_lost(network, images, labels - 1, seed=0, radii=RADII)


def test_pgd_refutes_a_wrong_certificate(measured, monkeypatch) -> None:
    measures, (network, images, labels) = measured
    monkeypatch.setattr(measures, "_published_at", lambda *_: torch.ones(1, len(labels), dtype=torch.bool))
    with pytest.raises(ValueError, match="PGD breaks an image that LoFAST certified at l2 2"):
        measures.certified_at(network, images, labels, seed=0, radii=[2.0])


@pytest.mark.slow
def test_crown_and_lofast_in_turn_certify_what_either_does(measured) -> None:
    pytest.importorskip("auto_LiRPA", reason="auto_LiRPA 0.7 is optional and not installed; see docs/certificates.md")
    measures, given = measured
    curves = measures.certified_at(*given, seed=0, radii=[0.001, 0.01], by_crown=True)
    ordered(curves, "LoFAST", "LoFAST, then CROWN")
    ordered(curves, "CROWN", "LoFAST, then CROWN")
    assert curves["CROWN"][0] > 0


def test_the_margin_gradient_loses_no_more_than_composing_nor_less_than_its_linear_part(measured) -> None:
    measures, given = measured
    ordered(measures.margin_lost(*given, seed=0, radii=RADII), "linear part", "margin gradient", "composing")


@pytest.mark.sweep
@pytest.mark.parametrize("norm", [0.0, 4.0])
def test_layer_bounds_are_ordered_and_above_ascent(measured, norm) -> None:
    measures, given = measured
    curves = measures.layer_bounds(*given, seed=0, radii=RADII, count=1, norm=norm)
    ordered(curves, "ascent", "this project", "Theorem 1", "Theorem 1 with xi")
    ordered(curves, "Theorem 1", "naive")


@pytest.mark.parametrize(
    ("part", "names"), [("attention", ("ascent", "this project", "exact M", "xi")), ("values", ("ascent", "(18)", "naive"))]
)
def test_the_parts_of_the_bound_are_above_ascent(measured, part, names) -> None:
    measures, given = measured
    ordered(measures.single_head(*given, seed=0, radii=RADII, part=part, count=1), *names)


def test_a_part_that_is_none_is_refused(measured) -> None:
    measures, given = measured
    with pytest.raises(ValueError, match="attention or values"):
        measures.single_head(*given, seed=0, radii=RADII, part="keys")


@pytest.mark.slow
def test_nothing_moved_is_the_bound_itself_and_values_matter_most(measured) -> None:
    measures, given = measured
    curves = measures.perturbed(*given, seed=0, sizes=(0.0, 2.0), samples=2, count=1)
    paper = measures.layer_bounds(*given, seed=0, radii=(0.1,), count=1)["Theorem 1"][0]
    assert all(curves[name][0] == pytest.approx(paper) for name in ("W_Q", "W_K", "W_V", "W_O", "X"))
    assert min(curves[name][1] for name in ("W_V", "W_O", "X")) > paper
