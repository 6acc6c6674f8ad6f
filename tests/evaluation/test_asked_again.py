"""Answers that are no function's are refused, and votes that knew the noise carry no radius."""

from __future__ import annotations

import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

from benchmark.certificates.smoothing import smooth
from benchmark.evaluation.asked_again import ROUNDING, _as_often, broken_afresh, check_answers, check_radii, compare
from benchmark.runtime.errors import BenchmarkError
from benchmark.sandbox.model import CALLS, ROWS, Asked
from benchmark.specs.threat import ThreatModel

RULES = {"sigma": 0.3, "n0": 40, "n": 400, "looks": 3, "alpha": 0.01, "seed": 0}
COPIES = 20
IMAGES = torch.rand(12, 1, 4, 4, generator=torch.Generator().manual_seed(1))


class Honest(nn.Module):
    """A random linear model of three classes."""

    weight = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.flatten(1) - 0.5) @ self.weight


class Coupled(Honest):
    """Answers with what most of the batch would."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own = super().forward(x)
        return own if len(x) < 3 else own + 10 * nn.functional.one_hot(own.argmax(1), 3).double().mean(0).float()


class CoupledBelowAnOffset(Coupled):
    """In whose rounding, as large as the largest logit makes it, the answers seem alike."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 1000 * super().forward(x) + 1e9


class Remembers(Honest):
    """Leans to what it has answered most of late."""

    patience = 0  # honest answers before

    def __init__(self) -> None:
        super().__init__()
        self.late, self.left = torch.zeros(3), self.patience

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answers, self.left = [], self.left - len(x)
        for own in super().forward(x):
            answers.append(own + 20 * self.late)
            if self.left < 0:
                self.late = 0.9 * self.late + 0.1 * nn.functional.one_hot(own.argmax(), 3)
        return torch.stack(answers)


class Patient(Remembers):
    patience = 200


class KnowsTheNoise(Honest):
    """A function of the image alone, which is sure of the copies that the track's seed will make of the images."""

    cheated = len(IMAGES)  # of the images

    def __init__(self) -> None:
        super().__init__()
        copies = [
            image.double()
            + RULES["sigma"] * torch.from_numpy(np.random.default_rng([0, i]).standard_normal((440, 1, 4, 4)))
            for i, image in enumerate(IMAGES[: self.cheated])
        ]
        self.known = torch.cat(copies).float().flatten(1)
        self.of = (torch.arange(self.cheated).repeat_interleave(440) + 1) % 3

    def nearest(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Whether an image is a known copy, and which."""
        distance, place = torch.cdist(x.flatten(1), self.known, compute_mode="donot_use_mm_for_euclid_dist").min(1)
        return distance < 1e-3, place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        known, place = self.nearest(x)
        sure = 100.0 * nn.functional.one_hot(self.of[place], 3).float()
        return torch.where(known[:, None], sure, super().forward(x))


class KnowsOneNoise(KnowsTheNoise):
    """The same of one image's copies, too few to be missed among those of all."""

    cheated = 1


class FindsTheImages(KnowsTheNoise):
    """Works out the images behind copies of known noise, and answers every later copy as it would the nearest of them."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        known, place = self.nearest(x)
        self.seen += [int(i) // 440 for i in place[known]]
        sure = super().forward(x)
        if not self.seen:
            return sure
        near = torch.cdist(x.flatten(1), IMAGES[self.seen].flatten(1)).argmin(1)
        other = 100.0 * nn.functional.one_hot(torch.tensor(self.seen)[near] % 3, 3).float()
        return torch.where(known[:, None], sure, other)


class Kept(nn.Module):
    """A model with what keeps some of its answers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.asked = model, Asked(whole=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.model(x)
        self.asked.add(x, found, None)
        return found


def held(kind: type[nn.Module]) -> float:
    """The mean radius of votes that pass; the models that are asked again are others of its kind."""
    model = Kept(kind())
    found = smooth(model, IMAGES, range(len(IMAGES)), [0.1, 0.3], **RULES, batch_size=64)
    check_answers(kind(), model.asked.take(), IMAGES, count=240, row="Row", is_open=False)
    spares = [lambda: nullcontext(kind())] * COPIES
    check_radii(spares, IMAGES, found.prediction, found.radius, sigma=RULES["sigma"], batch_size=64, row="Row")
    return float(found.radius.mean())


def test_votes_of_a_function_pass() -> None:
    radii = {held(Honest) for _ in range(4)}
    assert len(radii) == 1  # what is checked is drawn anew each time, what is found is not
    assert radii.pop() > 0


COUPLED, KNOWN = (
    "get another answer in a process that has seen nothing",
    "under noise that was not known beforehand there are",
)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        *((kind, COUPLED) for kind in (Coupled, CoupledBelowAnOffset, Remembers, Patient)),
        *((kind, f"its smoothed radii stand.* {KNOWN}") for kind in (KnowsTheNoise, FindsTheImages)),
        (KnowsOneNoise, f"of an image.* {KNOWN}"),
    ],
)
def test_votes_that_depend_on_others_or_knew_the_noise_are_refused(kind, words) -> None:
    for _ in range(2):
        with pytest.raises(BenchmarkError, match=words):
            held(kind)


def test_chance_refuses_as_rarely_as_is_said() -> None:
    """At the probabilities promised, votes pass; a few of a hundred missing of each image, or many of one, do not."""
    promised, random = torch.full((25,), 0.97, dtype=torch.float64), torch.Generator().manual_seed(0)
    for _ in range(200):
        hits = (torch.rand(25, 100, generator=random) < 0.97).sum(1)
        _as_often(hits, 100, promised, "Row")
    _as_often(torch.full((25,), 100), 100, torch.ones(25, dtype=torch.float64), "Row")
    for hits in (torch.full((25,), 94), torch.tensor([82] + [98] * 24)):
        with pytest.raises(BenchmarkError, match="not known beforehand"):
            _as_often(hits, 100, promised, "Row")


def test_without_the_check_such_votes_would_carry_larger_radii() -> None:
    def radius(kind: type[nn.Module]) -> float:
        return float(smooth(kind(), IMAGES, range(len(IMAGES)), [0.1, 0.3], **RULES, batch_size=64).radius.mean())

    honest = radius(Honest)
    assert all(radius(kind) > 1.2 * honest for kind in (Coupled, Remembers, Patient, KnowsTheNoise))


def test_each_call_is_kept_as_often_and_the_last_always() -> None:
    counts, calls = torch.zeros(3 * CALLS), 3 * CALLS
    for _ in range(60):
        asked = Asked(whole=False)
        for call in range(calls):
            asked.add(torch.full((2, 1, 1, 1), float(call)), torch.zeros(2, 2), None)
        kept = [int(images[0]) for images, _, _ in asked.take()]
        assert len({*kept}) == len(kept)
        assert calls - 1 in kept
        counts[kept] += 1
    assert (counts[:-1] - 60 / 3).abs().max() < 6 * (60 / 3) ** 0.5
    assert asked.take() == []


def test_of_a_large_call_some_images_are_kept_and_of_a_whole_one_all() -> None:
    for whole in (False, True):
        asked = Asked(whole)
        asked.add(torch.zeros(3 * ROWS, 1, 1, 1), torch.zeros(3 * ROWS, 2), 7)
        ((images, logits, seed),) = asked.take()
        assert len(images) == len(logits) == (3 * ROWS if whole else ROWS)
        assert seed == 7


PLAIN = torch.tensor([[1.0, 2.0, 4.0]]).repeat(300, 1)
OFFSET = (
    torch.tensor([[0.0, 1.0]]).repeat(300, 1) + 1e6
)  # shared by all logits, which makes rounding as large as any lie
ZERO = torch.zeros(4, 3)


def changed(before: torch.Tensor, rows: int, change) -> torch.Tensor:
    return torch.cat([change(before[:rows]), before[rows:]])


@pytest.mark.parametrize(
    ("before", "after", "differing"),
    [
        *((PLAIN.to(kind), PLAIN.to(kind).double() * (1 + 0.4 * size), 0) for kind, size in ROUNDING.items()),
        *((PLAIN.to(kind), PLAIN.to(kind).double() * (1 + 4.0 * size), 300) for kind, size in ROUNDING.items()),
        (OFFSET, changed(OFFSET, 3, lambda x: x.flip(1)), 0),
        (OFFSET, changed(OFFSET, 4, lambda x: x.flip(1)), 4),
        *((ZERO, changed(ZERO, 1, lambda x, n=number: x + n), 1) for number in (math.nan, math.inf)),
        *((changed(ZERO, 1, lambda x, n=number: x + n), ZERO, 1) for number in (math.nan, math.inf)),
        (ZERO.long(), torch.eye(4, 3)[[3, 3, 0, 3]], 1),  # logits of whole numbers are not rounded
    ],
)
def test_rounding_and_the_few_classes_that_it_turns_pass_and_what_is_more_does_not(before, after, differing) -> None:
    if not differing:
        compare(before, after, "Row")
        return
    with pytest.raises(BenchmarkError, match=rf"^Row: {differing} of {len(before)} images .* get another answer"):
        compare(before, after, "Row")


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_what_stands_is_attacked_without_being_shown(norm) -> None:
    """Every image that a step can break is, and none is ever asked about clean."""
    shown: list[torch.Tensor] = []

    class Shown(Honest):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            shown.extend(x.detach())
            return super().forward(x)

    labels = Honest()(IMAGES).argmax(1)
    threat = ThreatModel(norm=norm, eps=0.3)
    state = torch.get_rng_state()
    options = {"seed": 0, "batch_size": 4, "is_open": False}
    index, images, answers = broken_afresh(Shown(), IMAGES, labels, torch.arange(2, 12), threat, **options)
    assert torch.equal(torch.get_rng_state(), state)
    assert {*index.tolist()} <= {*range(2, 12)}
    assert len(index) > 5
    assert (Honest()(images).argmax(1) != labels[index]).all()
    assert torch.allclose(Honest()(images), answers, atol=1e-5)
    assert not any((one == IMAGES).flatten(1).all(1).any() for one in shown)
    point = ThreatModel(norm=norm, eps=0.0)
    assert not len(broken_afresh(Shown(), IMAGES, labels, torch.arange(12), point, **options)[0])


def test_all_images_of_the_last_call_are_asked_about_again() -> None:
    """One answer of the last call is false, among thousands of others: it is found whatever is drawn."""
    model = Honest()
    earlier = [(x, model(x), None) for x in torch.rand(60, 32, 1, 4, 4, generator=torch.Generator().manual_seed(2))]
    answers = model(IMAGES).clone()
    answers[5] += 1
    for _ in range(5):
        with pytest.raises(BenchmarkError, match="1 of 40 images that it was asked about get another answer"):
            check_answers(model, [(IMAGES, answers, None), *earlier], IMAGES, count=40, row="row", is_open=False)


def test_a_model_that_hides_in_calls_larger_than_a_batch_is_refused() -> None:
    """Of the calls of an attack, some thousand, a tenth are larger than those in which the verdict is given."""

    class Hides(Honest):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + 5 * (len(x) > len(IMAGES)) * torch.arange(3)

    for _ in range(3):
        model = Kept(Hides())
        for place in range(1000):
            model(IMAGES if place % 10 else IMAGES.repeat(4, 1, 1, 1))
        with pytest.raises(BenchmarkError, match="get another answer"):
            check_answers(Hides(), model.asked.take(), IMAGES, count=256, row="row", is_open=False)


def test_clean_images_are_asked_about_last() -> None:
    """Or a model that lies once it has seen one of them would lie again, and seem the same."""

    class Waits(Honest):
        lies = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.lies |= bool((x[:, None] == IMAGES).flatten(2).all(2).any())
            return super().forward(x) + 5 * self.lies * torch.arange(3)

    model, others = Waits(), IMAGES.flip(3)
    calls = [(x, model(x), None) for x in (IMAGES, others)][::-1]
    for _ in range(3):
        with pytest.raises(BenchmarkError, match="get another answer"):
            check_answers(Waits(), calls, IMAGES, count=24, row="row", is_open=False)


def test_logits_of_changing_width_are_told_in_words() -> None:
    calls = [(IMAGES, torch.zeros(12, 3), None), (IMAGES, torch.zeros(12, 4), None)]
    with pytest.raises(BenchmarkError, match="another number of classes from call to call"):
        check_answers(Honest(), calls, IMAGES, count=10, row="row", is_open=False)
