"""Answers that are no function's are refused, and votes that knew the noise carry no radius."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot

from benchmark.certificates.smoothing import smooth
from benchmark.evaluation.asked_again import (
    ROUNDING,
    _among,
    _as_often,
    attacked_afresh,
    beside,
    check_answers,
    check_radii,
    compare,
    false_slopes,
)
from benchmark.evaluation.indicators import true_gradients
from benchmark.runtime.errors import BenchmarkError
from benchmark.sandbox.model import CALLS, ROWS, Asked
from benchmark.specs.threat import ThreatModel

RULES = {"sigma": 0.3, "n0": 40, "n": 400, "looks": 3, "alpha": 0.01, "seed": 0}
COPIES = 20
IMAGES = torch.rand(12, 1, 4, 4, generator=torch.Generator().manual_seed(1))
WEIGHT = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
Answer = Callable[[torch.Tensor], torch.Tensor]


def honest(x: torch.Tensor) -> torch.Tensor:
    """A random linear model of three classes."""
    return (x.flatten(1) - 0.5) @ WEIGHT


class Model(nn.Module):
    """A new model of a kind; `asked` keeps some of its answers."""

    def __init__(self, kind: Callable[[], Answer]) -> None:
        super().__init__()
        self.answer, self.asked = kind(), Asked(whole=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answers = self.answer(x)
        self.asked.add(x, answers, None)
        return answers


def function() -> Answer:
    return honest


def coupled(scale: float = 1, offset: float = 0) -> Answer:
    """Answers with what most of the batch would; an offset makes rounding as large as the difference."""

    def answer(x: torch.Tensor) -> torch.Tensor:
        own = honest(x)
        most = 10 * one_hot(own.argmax(1), 3).double().mean(0).float()
        return scale * (own if len(x) < 3 else own + most) + offset

    return answer


def remembers(patience: int = 0) -> Answer:
    """Leans to what it has answered most of late, after so many honest answers."""
    late, left = torch.zeros(3), patience

    def answer(x: torch.Tensor) -> torch.Tensor:
        nonlocal late, left
        answers, left = [], left - len(x)
        for own in honest(x):
            answers.append(own + 20 * late)
            if left < 0:
                late = 0.9 * late + 0.1 * one_hot(own.argmax(), 3)
        return torch.stack(answers)

    return answer


def knows_the_noise(cheated: int = len(IMAGES), finds: bool = False) -> Answer:
    """A function that is sure of the copies that the track's seed will make of the first `cheated` images. If it `finds` the
    images behind copies of known noise, it answers every later copy as it would the nearest of them.
    """
    noise = [np.random.default_rng([0, i]).standard_normal((440, 1, 4, 4)) for i in range(cheated)]
    copies = [image.double() + RULES["sigma"] * torch.from_numpy(n) for image, n in zip(IMAGES, noise, strict=False)]
    known, seen = torch.cat(copies).float().flatten(1), list[int]()

    def answer(x: torch.Tensor) -> torch.Tensor:
        distance, place = torch.cdist(x.flatten(1), known, compute_mode="donot_use_mm_for_euclid_dist").min(1)
        near, image, other = distance < 1e-3, place // 440, honest(x)
        if finds:
            seen.extend(image[near].tolist())
        if seen:
            nearest = torch.cdist(x.flatten(1), IMAGES[seen].flatten(1)).argmin(1)
            other = 100.0 * one_hot(torch.tensor(seen)[nearest] % 3, 3).float()
        return torch.where(near[:, None], 100.0 * one_hot((image + 1) % 3, 3).float(), other)

    return answer


def checked(kind: Callable[[], Answer]) -> float:
    """The mean radius of votes that pass; the models that are asked again are others of the kind."""
    model = Model(kind)
    votes = smooth(model, IMAGES, range(len(IMAGES)), [0.1, 0.3], **RULES, batch_size=64)
    check_answers(Model(kind), model.asked.take(), IMAGES, [], count=240, row="Row", is_open=False)
    spares = [lambda: nullcontext(Model(kind))] * COPIES
    check_radii(spares, IMAGES, votes.prediction, votes.radius, sigma=RULES["sigma"], batch_size=64, row="Row")
    return float(votes.radius.mean())


PATIENT = partial(remembers, 200)
COUPLED = "get another answer in a process that has seen nothing"
KNOWN = "under noise that was not known beforehand there are"


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        *((kind, COUPLED) for kind in (coupled, partial(coupled, 1000, 1e9), remembers, PATIENT)),
        *((kind, f"its smoothed radii stand.* {KNOWN}") for kind in (knows_the_noise, partial(knows_the_noise, finds=True))),
        (partial(knows_the_noise, cheated=1), f"of an image.* {KNOWN}"),
    ],
)
def test_votes_that_depend_on_others_or_knew_the_noise_are_refused(kind, words) -> None:
    for _ in range(2):
        with pytest.raises(BenchmarkError, match=words):
            checked(kind)


@pytest.mark.slow
def test_without_the_check_such_votes_would_carry_larger_radii() -> None:
    def radius(kind: Callable[[], Answer]) -> float:
        return float(smooth(Model(kind), IMAGES, range(len(IMAGES)), [0.1, 0.3], **RULES, batch_size=64).radius.mean())

    assert all(radius(kind) > 1.2 * radius(function) for kind in (coupled, remembers, PATIENT, knows_the_noise))


def test_votes_of_a_function_pass() -> None:
    """What is checked is drawn anew each time, the result is not."""
    (radius,) = {checked(function) for _ in range(4)}
    assert radius > 0


def test_chance_refuses_as_rarely_as_promised() -> None:
    """At the probabilities promised, votes pass; a few of a hundred missing of each image, or many of one, do not."""
    promised, random = torch.full((25,), 0.97, dtype=torch.float64), torch.Generator().manual_seed(0)
    for _ in range(200):
        _as_often((torch.rand(25, 100, generator=random) < 0.97).sum(1), 100, promised, "Row")
    _as_often(torch.full((25,), 100), 100, torch.ones(25, dtype=torch.float64), "Row")
    for hits in (torch.full((25,), 94), torch.tensor([82] + [98] * 24)):
        with pytest.raises(BenchmarkError, match="not known beforehand"):
            _as_often(hits, 100, promised, "Row")


def test_each_call_is_kept_as_often_and_the_last_always_and_of_large_calls_some_images() -> None:
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
    for whole in (False, True):
        asked = Asked(whole)
        asked.add(torch.zeros(3 * ROWS, 1, 1, 1), torch.zeros(3 * ROWS, 2), 7)
        ((images, logits, seed),) = asked.take()
        assert len(images) == len(logits) == (3 * ROWS if whole else ROWS)
        assert seed == 7


PLAIN, ZERO = torch.tensor([[1.0, 2.0, 4.0]]).repeat(300, 1), torch.zeros(4, 3)
TIES = torch.tensor([[0.0, 1e-5, -1.0]]).repeat(300, 1)  # rounding may turn some of them


def flipped(rows: int) -> torch.Tensor:
    return torch.cat([TIES[:rows][:, [1, 0, 2]], TIES[rows:]])


@pytest.mark.parametrize(
    ("before", "after", "differing"),
    [
        *((PLAIN.to(kind), PLAIN.to(kind).double() * (1 + 0.3 * size), 0) for kind, size in ROUNDING.items()),
        *((PLAIN.to(kind), PLAIN.to(kind).double() * (1 + 0.5 * size), 300) for kind, size in ROUNDING.items()),
        (TIES, flipped(3), 0),
        (TIES, flipped(4), 4),
        # no lie hides below an offset or a scale that all logits share
        *((offset + scale * PLAIN, offset + scale * PLAIN[:, [1, 0, 2]], 300) for offset, scale in ((3e4, 1), (0, 1e-5))),
        (PLAIN, PLAIN.where(torch.arange(300)[:, None] > 5, PLAIN[0] + 0.1 * torch.eye(3)[0]), 6),
        *((ZERO, torch.cat([ZERO[:1] + number, ZERO[1:]]), 1) for number in (math.nan, math.inf)),
        *((torch.cat([ZERO[:1] + number, ZERO[1:]]), ZERO, 1) for number in (math.nan, math.inf)),
        (ZERO.long(), torch.eye(4, 3)[[3, 3, 0, 3]], 1),  # logits of whole numbers are not rounded
    ],
)
def test_rounding_and_the_few_classes_that_it_turns_pass_and_what_is_more_does_not(before, after, differing) -> None:
    words = rf"^Row: {differing} of {len(before)} images .* get another answer"
    with pytest.raises(BenchmarkError, match=words) if differing else nullcontext():
        compare(before, after, "Row")


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_robust_images_are_attacked_without_being_shown_clean(norm) -> None:
    """Every image that a step can break is, and none is ever asked about clean."""
    shown: list[torch.Tensor] = []
    model = Model(lambda: lambda x: (shown.extend(x.detach()), honest(x))[1])
    labels, state = honest(IMAGES).argmax(1), torch.get_rng_state()
    options = {"seed": 0, "batch_size": 4, "is_open": False}
    images, answers = attacked_afresh(model, IMAGES[2:], labels[2:], ThreatModel(norm=norm, eps=0.3), **options)
    assert torch.equal(torch.get_rng_state(), state)
    assert (honest(images).argmax(1) != labels[2:]).sum() > 5
    assert torch.allclose(honest(images), answers, atol=1e-5)
    assert not any((image == IMAGES).flatten(1).all(1).any() for image in shown)


@pytest.mark.parametrize(
    ("lies", "false"),
    [
        (lambda g: g, 0),
        (lambda g: 3 * g, 100),
        (lambda g: -g, 100),
        (lambda g: g.flip(3), 100),
        (lambda g: torch.cat([g[:30], 1e-6 * g[30:].flip(3)]), 70),  # an attack follows its direction all the same
        (lambda g: torch.cat([g[:80], torch.full_like(g[80:], math.nan)]), 20),
    ],
)
def test_gradients_are_compared_with_the_answers(lies, false) -> None:
    generator, asked = torch.Generator().manual_seed(3), Asked(whole=False)
    images = torch.rand(100, 1, 4, 4, generator=generator).requires_grad_()
    above, answers = torch.randn(100, 3, generator=generator), honest(images)
    (true,) = torch.autograd.grad((answers * above).sum(), images)
    for kept in zip(images, answers, above, lies(true), strict=True):
        asked.add_gradient(*(tensor[None] for tensor in kept))
    slopes = asked.take_gradients()
    count, checked, kept = false_slopes(slopes, honest(beside(slopes)))
    assert kept == 100
    assert abs(count - false) <= 3
    assert checked >= 95
    assert asked.take_gradients() == []
    assert false_slopes([], torch.zeros(0, 3)) == (0, 0, 0)


@pytest.mark.parametrize(
    ("function", "clear"),
    [
        *(
            (lambda x, a=a, b=b: a + b * honest(x), clear)
            for a, b, clear in ((3e2, 1, True), (0, 1e-5, True), (3e4, 1, False))
        ),
        (lambda x: honest(x).bfloat16(), False),
    ],
)
def test_false_gradients_do_not_hide_in_rounding(function, clear) -> None:
    """Where most cannot be compared, as in bfloat16, that is told too."""
    images = torch.rand(100, 1, 4, 4, generator=torch.Generator().manual_seed(2)).requires_grad_()
    answers = function(images)
    (above,) = torch.autograd.grad(
        answers.float().logsumexp(1).sum() - answers[:, 0].float().sum(), answers, retain_graph=True
    )
    (true,) = torch.autograd.grad(answers, images, above)
    for given, sound in ((true, True), (true.flip(3), False)):
        slopes = [tuple(t.detach() for t in kept) for kept in zip(images, answers, above, given, strict=True)]
        compared = false_slopes(slopes, function(beside(slopes)))
        assert (compared[1] > 50) is clear
        assert (true_gradients({"pgd": compared}) is None) is (sound and clear)


def test_gradients_that_nobody_can_compare_are_told() -> None:
    for compared, words in (
        ((3, 40, 40), "pgd: 3 of 40 gradients do not say how the logits change along them"),
        ((0, 90, 200), "pgd: 110 of 200 gradients are smaller than the rounding of the logits"),
    ):
        signal = true_gradients({"apgd": (0, 200, 256), "pgd": compared, "fgsm": (0, 0, 2), "cw": (2, 3, 3)})
        assert signal is not None
        assert signal.measured == words
        assert not signal.sound


def test_a_kept_gradient_is_a_copy() -> None:
    """An attack may move its images in place, and a view would keep the whole batch in memory."""
    asked, batch = Asked(whole=False), torch.zeros(400, 3, 8, 8)
    asked.add_gradient(batch, torch.zeros(400, 10), torch.zeros(400, 10), batch)
    batch += 1
    for tensor in asked.take_gradients()[0]:
        assert not tensor.any()
        assert tensor.untyped_storage().nbytes() == tensor.nbytes


def assert_refused(kind: Callable[[], Answer], calls: list, count: int, words: str = "get another answer") -> None:
    """Check that answers kept of these calls are refused, compared with those of another model of the kind."""
    with pytest.raises(BenchmarkError, match=words):
        check_answers(Model(kind), calls, IMAGES, [], count=count, row="row", is_open=False)


def test_all_images_of_the_last_call_are_asked_about_again() -> None:
    """One answer of the last call is false, among thousands of others: it is found whatever is drawn."""
    earlier = [(x, honest(x), None) for x in torch.rand(60, 32, 1, 4, 4, generator=torch.Generator().manual_seed(2))]
    answers = honest(IMAGES).clone()
    answers[5] += 1
    for _ in range(5):
        words = "1 of 52 images that it was asked about get another answer"
        assert_refused(function, [(IMAGES, answers, None), *earlier], 40, words)


def test_a_model_that_hides_in_calls_larger_than_a_batch_is_refused() -> None:
    """Of the calls of an attack, some thousand, a tenth are larger than those in which the verdict is given."""

    def hides() -> Answer:
        return lambda x: honest(x) + 5 * (len(x) > len(IMAGES)) * torch.arange(3)

    for _ in range(3):
        model = Model(hides)
        for place in range(1000):
            model(IMAGES if place % 10 else IMAGES.repeat(4, 1, 1, 1))
        assert_refused(hides, model.asked.take(), 256)


def test_clean_images_are_asked_about_last() -> None:
    """Or a model that lies once it has seen one of them would lie again, and seem the same."""

    def waits() -> Answer:
        lies = False

        def answer(x: torch.Tensor) -> torch.Tensor:
            nonlocal lies
            lies |= bool((x[:, None] == IMAGES).flatten(2).all(2).any())
            return honest(x) + 5 * lies * torch.arange(3)

        return answer

    assert _among(-torch.zeros(2, 1, 4, 4), torch.zeros(1, 1, 4, 4)).all()
    model = waits()
    calls = [(x, model(x), None) for x in (IMAGES, IMAGES.flip(3))][::-1]
    for _ in range(3):
        assert_refused(waits, calls, 24)


def test_logits_of_changing_width_are_refused() -> None:
    calls = [(IMAGES, torch.zeros(12, 3), None), (IMAGES, torch.zeros(12, 4), None)]
    assert_refused(function, calls, 10, "another number of classes from call to call")
