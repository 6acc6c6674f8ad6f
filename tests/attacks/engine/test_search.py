"""The fast engine compared with the authors' files: FAB's points, and one image's way whatever its company."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from tiny_attacked import Watched, assert_same_rows, authors, labelled, search_of
from tiny_models import Linear, Through, grey_images
from torch import nn, relu

from benchmark.attacks import autoattack
from benchmark.attacks.engine import apgd, fab, square
from benchmark.attacks.engine.slots import generator
from benchmark.attacks.internals import Notes
from benchmark.attacks.prediction import MIN_ROWS, margins
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import ThreatModel


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_fab_visits_the_points_that_the_authors_file_visits(norm) -> None:
    """Where the ball is too small for it to end early: both its steps and the points it asks for labels at."""
    model, eps = Watched(), 1e-6
    images, labels = labelled(model, n=MIN_ROWS)  # of one batch with the engine's, which rounds by its size
    attacker = authors(model, norm, eps)
    attacker.fab.target_class = 3
    with torch.no_grad():
        attacker.fab.attack_single_run(images, labels, is_targeted=True)
        rivals = 4 * model.net(images).sort(dim=1).indices[:, -3:-2]
    theirs = [model.points(place, gradient=True) for place in range(len(images))]
    checked = [model.points(place, gradient=False)[2:] for place in range(len(images))]  # after two of the clean images
    rivals = rivals // 4
    for place in range(0, len(images), 8):
        model.asked.clear()
        search = search_of(model, images[place : place + 1], labels[place : place + 1], norm, eps)
        fab.targeted(search, rivals[place : place + 1])
        for ours, others in ((True, theirs), (False, checked)):
            points = model.points(0, gradient=ours)
            assert len(points) == len(others[place]) == 100
            assert all(torch.equal(a, b) for a, b in zip(points, others[place], strict=True))


def test_streams_differ_by_seed_image_and_purpose_and_repeat() -> None:
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0, 1)]
    drawn = {tuple(torch.rand(4, generator=generator(*key)).tolist()) for key in keys + keys}
    assert len(drawn) == len(keys)


def test_slots_are_refilled_and_broken_images_leave_the_queue() -> None:
    """Seven runs of three images in two slots: never more than two at once, in order, none of an image already broken."""
    model, images = Linear(classes=6).eval().requires_grad_(False), grey_images(3)
    search = search_of(model, images, model(images).argmax(1), "Linf", 0.1, slots=2)
    begun, most = [], 0

    def start(image: torch.Tensor, target: torch.Tensor):
        begun.extend(zip(image.tolist(), target.tolist(), strict=True))
        return {"left": 2 + image, "point": images[image] + 0.05}

    def advance(state) -> torch.Tensor:
        nonlocal most
        most = max(most, len(state["image"]))
        state["left"] -= 1
        wrong = (state["image"] == 0) & (state["left"] == 0)
        search.record(state, wrong)
        return state["left"] == 0

    search.run([(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (0, 2), (2, 1)], start, advance)
    assert begun == [(0, 0), (1, 0), (2, 0), (1, 1), (2, 1)]  # image 0 is broken after two steps
    assert most == 2
    assert search.broken.tolist() == [True, False, False]
    assert torch.equal(search.adversarial[1:], images[1:])


def test_of_several_runs_that_break_an_image_the_first_in_order_counts() -> None:
    """Whichever is there first: the second and the third break the image at once, the first after three steps."""
    model, images = Linear(classes=6).eval().requires_grad_(False), grey_images(1)
    search, steps, by = search_of(model, images, model(images).argmax(1), "Linf", 0.1, slots=3), [], []

    def start(image: torch.Tensor, target: torch.Tensor):
        point = images[image] + 0.01 * (1 + target[:, None, None, None])
        return {"left": torch.where(target == 0, 3, 1), "point": point}

    def advance(state) -> torch.Tensor:
        steps.append(state["target"].tolist())
        state["left"] -= 1
        search.record(state, state["left"] == 0)
        by.extend(search.by.tolist())
        return state["left"] == 0

    search.run([(0, 0), (0, 1), (0, 2)], start, advance)
    assert steps == [[0, 1, 2], [0], [0]]
    assert by == [1, 1, 0]
    assert torch.equal(search.adversarial, images + 0.01)


def test_the_likeliest_rivals_are_attacked_first(monkeypatch) -> None:
    model, images, seen = Linear(classes=12).eval().requires_grad_(False), grey_images(4), []
    monkeypatch.setattr(apgd, "targeted", lambda _search, rivals, *_: seen.append(rivals))
    threat, logits = ThreatModel(norm="Linf", eps=0.1), model(images)
    autoattack.attack(model, images, logits.argmax(1), threat, seed=0, component="apgd-t")
    assert torch.equal(seen[0], logits.topk(1 + autoattack.TARGETS, dim=1).indices[:, 1:])


def test_budgets_are_the_authors() -> None:
    package = authors(Linear(), "Linf", 0.1)
    assert package.apgd.n_iter == package.apgd_targeted.n_iter == apgd.STEPS
    assert (package.apgd.n_restarts, package.apgd_targeted.n_restarts, package.fab.n_restarts) == (1, 1, 1)
    assert package.apgd.thr_decr == apgd.RHO
    ours = (fab.STEPS, fab.ALPHA, fab.ETA, fab.BETA)
    assert (package.fab.n_iter, package.fab.alpha_max, package.fab.eta, package.fab.beta) == ours
    assert package.apgd_targeted.n_target_classes == package.fab.n_target_classes == autoattack.TARGETS
    assert (package.square.n_queries, package.square.p_init) == (square.QUERIES, square.P_INIT)
    assert package.square.rescale_schedule is False
    assert tuple(package.attacks_to_run) == autoattack.components


GREY = grey_images(4)
ODD = {  # models with a gradient that is NaN (0, with a slope of 0 times infinity), or zero, everywhere
    "nan": Through(Linear(classes=6), after=lambda z, x: z + (x - x).abs().sqrt().sum()),
    "flat": Through(Linear(classes=6), lambda x: (x * 255).round() / 255 + 0 * x),
    "moved": Through(Linear(classes=6), after=lambda z, x: z.masked_fill(~torch.isin(x, GREY).all(), torch.nan)),
}
CASES = [("nan", "apgd-ce"), ("moved", "apgd-t"), ("moved", "square"), ("flat", "apgd-t")]


@pytest.mark.parametrize(("kind", "component"), CASES)
def test_what_is_not_finite_stops_the_attack_and_a_gradient_that_is_zero_is_warned_of(kind, component) -> None:
    model, images, notes = ODD[kind].eval().requires_grad_(False), GREY, Notes()
    threat, labels = ThreatModel(norm="Linf", eps=1e-4), model(images).argmax(1)
    attack = partial(autoattack.attack, model, images, labels, threat, seed=0, component=component, notes=notes)
    if kind != "flat":
        with pytest.raises(BenchmarkError, match="gradient is not" if kind == "nan" else "logits are not"):
            attack()
    else:
        attack()
        assert "20 runs that begin with zero gradient" in notes.warnings[0]


@pytest.mark.parametrize("component", ["apgd-ce", "apgd-t", "fab-t", "square"])
def test_a_point_where_the_label_ties_counts_as_broken(component) -> None:
    model = Through(nn.Flatten(), after=lambda z, x: torch.cat((relu(z.mean(1, keepdim=True) - 0.5), 0 * z[:, 1:]), 1))
    images, labels, threat = 0.02 + grey_images(4), torch.zeros(4, dtype=torch.long), ThreatModel(norm="Linf", eps=0.1)
    moved = autoattack.attack(model, images, labels, threat, seed=0, component=component)
    assert ((margins(model(images), labels) > 0) & (margins(model(moved), labels) <= 0)).all()


def test_few_rows_are_padded_so_that_rounding_does_not_change() -> None:
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 10)).requires_grad_(False)
    images = torch.rand(33, 1, 8, 8)
    search = search_of(layer, images, torch.zeros(33, dtype=torch.long), "Linf", 0.1)
    whole = search.logits(images)
    for rows in (1, 2, 3, 5, 32):
        assert_same_rows(torch.cat([search.logits(part) for part in images.split(rows)]), whole)
    slopes = search.gradient(images, lambda z: z[:, 0])[2]
    assert_same_rows(torch.cat([search.gradient(part, lambda z: z[:, 0])[2] for part in images.split(3)]), slopes)
