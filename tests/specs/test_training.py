"""Recipes: defaults, and what is refused in one line."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from tiny_training import spec

from benchmark.runtime.errors import BenchmarkError, explain
from benchmark.specs.rows import load_row
from benchmark.specs.submission import Submission
from benchmark.specs.threat import AttackSpec
from benchmark.specs.training import Augmentation, TrainingSpec, recipe_problem

PGD = AttackSpec(attack="pgd", norm="Linf", eps=0.1, parameters={"steps": 3, "step_size": 0.05})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attack": {"attack": "fgsm", "norm": "Linf", "eps": 8}}, "pixels in [0, 1], so 8/255 is 0.0314"),
        ({"selection": {"by": "robust"}}, "needs an `attack`"),
        ({"selection": {"attack": PGD}}, "has no use for an `attack`"),
        ({"warmup_epochs": 6}, "leaves none of 6 epochs at the full radius"),
        ({"rate_warmup_epochs": 2}, "one_cycle has its own rise"),
        ({"schedule": "constant", "final_rate": 0.1}, "final_rate is where a cosine ends"),
        ({"schedule": "cosine", "rate_warmup_epochs": 6}, "should be below epochs 6"),
        ({"closing": {"epochs": 6}}, "closing.epochs 6 should be below epochs 6"),
        ({"closing": {"epochs": 1, "augmentation": {"mixup": 0.2}}}, "may end before the last epochs, not begin there"),
        ({"learning_rate": float("inf")}, "finite"),
        ({"ema": 1.0}, "less than 1"),
        ({"augmentation": {"mixupp": 1}}, "'variants.v.tracks.digits.training.augmentation.mixupp'; did you mean"),
        ({"selection": {"patiense": 1}}, "did you mean 'patience'?"),
        ({"clip_nrom": 1}, "did you mean 'clip_norm'?"),
        ({"epochs": 0}, "epochs 0 trains nothing"),
        ({"prepare": [{"name": "scaling"}] * 2}, "the preparation scaling is given twice"),
        ({"penalties": [{"name": "msvp"}] * 2}, "the penalty msvp is given twice"),
        ({"init_from": {"row": "A-b", "cell": "c"}}, "name one"),
        ({"init_from": {}}, "name one"),
        ({"selection": {"by": "certified"}}, "needs a `certificate`, such as lipschitz, and a `radius`"),
        ({"selection": {"by": "clean", "radius": 0.1}}, "has no use for a certificate"),
        (
            {"selection": {"by": "certified", "certificate": "unsound_paper", "radius": 0.1}},
            "nothing can be certified by it",
        ),
    ],
)
def test_bad_recipes_are_refused_in_one_line(changes, message) -> None:
    training = {"objective": "standard", "epochs": 6, "batch_size": 16, "learning_rate": 0.02, **changes}
    paper = {"title": "t", "authors": "a", "year": 2026}
    variants = {"v": {"title": "t", "tracks": {"digits": {"training": training}}}}
    with pytest.raises(ValidationError) as raised:
        Submission.model_validate({"name": "N", "summary": "s", "paper": paper, "variants": variants})
    line = str(explain(raised.value, Submission, "submission.yaml"))
    assert message in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("changes", "shape", "message"),
    [
        (
            {"attack": {"attack": "pgd", "norm": "L2", "eps": 128}},
            (3, 32, 32),
            "L2 eps 128 is above 55.43, the diameter",
        ),
        ({"selection": {"by": "robust", "attack": {"attack": "pgd", "norm": "L2", "eps": 9}}}, (1, 8, 8), "above 8"),
        ({"augmentation": {"jitter": 0.1}}, (1, 8, 8), "colour images, these are 1x8x8"),
        ({"augmentation": {"randaugment": 2}}, (4, 8, 8), "1 or 3 channels"),
        ({"augmentation": {"crop": 8}}, (1, 8, 8), "out of sight"),
        ({"closing": {"epochs": 1, "augmentation": {"crop": 8}}}, (1, 8, 8), "closing.augmentation.crop 8 could push"),
        ({"attack": {"attack": "pgd", "norm": "L2", "eps": 8}}, (1, 8, 8), None),
    ],
)
def test_recipes_that_do_not_fit_the_images_are_refused(changes, shape, message) -> None:
    found = recipe_problem(spec(**changes), shape)
    assert (found is None) if message is None else (message in found)


def test_a_misfit_stops_a_row_with_its_place(monkeypatch) -> None:
    row = load_row("digits", "Wong2020Fast-linf")
    wrong = row.settings.training.model_copy(update={"augmentation": Augmentation(jitter=0.1)})
    settings = row.settings.model_copy(update={"training": wrong})
    monkeypatch.setattr("benchmark.specs.submissions.settings", lambda *_: settings)
    with pytest.raises(BenchmarkError, match=r"submission\.yaml: variant linf on digits: augmentation\.jitter is for"):
        load_row("digits", "Wong2020Fast-linf")


def test_defaults_are_what_they_were() -> None:
    given = TrainingSpec(objective="standard", epochs=2, batch_size=2, learning_rate=0.1)
    assert not given.augmentation.any
    assert "closing" not in given.model_dump(), "recipes without it keep their digests"
    options = (given.sam, given.ema, given.clip_norm, given.schedule, given.weight_decay_on)
    assert options == (0, 0, 0, "one_cycle", "all")
