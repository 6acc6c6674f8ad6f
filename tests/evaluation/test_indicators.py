"""A sound network raises no warning, each way of masking gradients its own, and so does a weaker attack that beats a stronger."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from masked_networks import MASKED, blobs, train, trained
from safetensors.torch import load, save
from searched import draws
from torch import nn

from benchmark.evaluation import indicators, probes
from benchmark.evaluation.indicators import Ran, allowance
from benchmark.specs.threat import AttackSpec, ThreatModel

pytestmark = pytest.mark.slow

LINF, L2 = ThreatModel(norm="Linf", eps=0.1), ThreatModel(norm="L2", eps=0.4)
SHAPE = (1, 6, 6)
N = 100


def measured(model: torch.nn.Module, threat: ThreatModel = LINF, **options) -> probes.ProbeResults:
    images, labels = blobs()
    return probes.measure(model.eval(), images, labels, threat, batch_size=60, **options)


def failing(found: probes.ProbeResults, threat: ThreatModel = LINF) -> set[str]:
    return {s.name for s in indicators.failure_indicators(found, threat, probes.radii(threat, SHAPE)) if not s.sound}


@pytest.mark.parametrize("threat", [LINF, L2], ids=lambda t: t.norm)
def test_a_sound_network_raises_no_warning(threat) -> None:
    results, balls = measured(trained(), threat), probes.radii(threat, SHAPE)
    assert indicators.correct(results).all()
    assert failing(results, threat) == set()
    steps, radii = indicators.step_curve(results), indicators.radius_curve(results, balls)
    assert [point.steps for point in steps] == list(probes.STEPS)
    assert steps[-1].margin < 0.5 * steps[0].margin
    assert 0 < steps[-1].accuracy < 1, "a ball in which nothing is decided would test nothing"
    assert radii[-1].accuracy == 0
    norms = indicators.gradient_norms(results)
    assert norms.zeros == 0
    assert [norm for _, norm in norms.quantiles] == sorted(norm for _, norm in norms.quantiles)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU, nn.Tanh])
@pytest.mark.parametrize("seed", draws([0], range(1, 4)))
def test_sound_networks_of_other_kinds_raise_no_warning(activation, seed) -> None:
    """Other activations, starts, radii, and few images."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 32), activation(), nn.Linear(32, 32), activation(), nn.Linear(32, 4))
    train(model, steps=300, seed=seed + 10)
    images, labels = blobs(100 if seed % 2 else 7)
    for threat in (ThreatModel(norm="Linf", eps=0.001), LINF, ThreatModel(norm="Linf", eps=0.4), L2):
        assert failing(probes.measure(model, images, labels, threat, batch_size=50), threat) == set()


@pytest.mark.parametrize(
    ("kind", "warnings", "others"),
    [
        ("rounded", {"the margin has gradients", "steps raise the loss", "accuracy reaches 0"}, "the same answer twice"),
        ("saturated", {"the cross-entropy has gradients", "accuracy reaches 0"}, "the margin has gradients"),
        ("shattered", {"accuracy reaches 0"}, "the margin has gradients"),
        ("random", {"the same answer twice", "the margin never rises"}, "the margin has gradients"),
        ("uphill", {"steps raise the loss", "the margin never rises", "iterated gradients beat one step and chance"}, "the cross-entropy has gradients"),
    ],
)  # fmt: skip
def test_masked_gradients_raise_the_right_warnings_alone(kind, warnings, others) -> None:
    """And PGD breaks no image of three, although images made on the sound network break them: a transfer attack."""
    model = MASKED[kind]()
    results = measured(model)
    raised = failing(results)
    assert warnings <= raised
    assert others not in raised
    if kind in ("rounded", "saturated", "uphill"):
        images, labels = blobs()
        moved = probes.pgd.attack(trained(), images, labels, LINF, seed=0, steps=50, step_size=0.01)
        assert (model(moved).argmax(1) != labels).sum() > 0.5 * (trained()(moved).argmax(1) != labels).sum() > 5
        assert not (results["steps 100"] <= 0).any()


def test_measuring_again_and_resuming_give_the_same_numbers() -> None:
    order, rest = list[str](), list[str]()
    whole = measured(trained(), keep=lambda name, _: order.append(name))
    kept = list(whole)[:9]
    assert kept[-1] == "loss 0"
    checkpoint = load(save({name: whole[name] for name in kept}))
    assert list(checkpoint) != kept, "a checkpoint has an order of its own"
    again = measured(trained(), done=checkpoint, keep=lambda name, _: rest.append(name))
    assert rest == order[order.index("steps 1") :]
    assert list(again) == list(whole)
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_probed_margins_are_those_of_images_in_the_ball() -> None:
    images, labels = blobs(20)
    clean, model = measured(trained())["clean"][:20], trained()
    least = probes.noise(model, images, labels, L2, seed=0).double()
    norms = [float(torch.linalg.matrix_norm(layer.weight, 2)) for layer in (model.hidden, model.out)]
    lipschitz = math.sqrt(2) * norms[0] * norms[1] * 1.13  # gelu's slope is below 1.13
    assert (least >= clean - lipschitz * L2.eps).all()
    assert (least < clean).float().mean() > 0.9


def test_radii_grow_from_the_threat_to_the_ball_of_all_images() -> None:
    linf = [ball.eps for ball in probes.radii(ThreatModel(norm="Linf", eps=8 / 255), (3, 32, 32))]
    assert (linf[0], linf[-1]) == (8 / 255, 1)
    assert all(a < b for a, b in itertools.pairwise(linf))
    exact = [ThreatModel(norm="L2", eps=eps).exact for eps in (8 / 255, 0.15, 1)]
    assert exact == [f"L2 {8 / 255!r}", "L2 0.15", "L2 1"]
    assert probes.radii(L2, SHAPE)[-1].eps == 6
    assert {ball.eps for ball in probes.radii(ThreatModel(norm="Linf", eps=1), SHAPE)} == {1.0}
    point = ThreatModel(norm="Linf", eps=0)
    assert (probes.first_threat((point, LINF, L2)), probes.first_threat((point,))) == (LINF, None)


def sound_margins(n: int = N) -> probes.ProbeResults:
    """Probes of a made-up sound row: margins fall from 1 to -1 as steps and radii grow."""
    names = ("clean", "again", "gradient", "loss gradient", "noise", "fgsm", "clean start")
    values = dict.fromkeys(names, 1.0)
    values |= {f"steps {k}": 1.0 - 0.1 * i for i, k in enumerate(probes.STEPS)}
    values |= {f"loss {k}": 0.1 + 0.1 * i for i, k in enumerate(probes.STEPS)}
    values |= {f"radius {ball.eps:g}": 0.9 - 0.25 * i for i, ball in enumerate(probes.radii(LINF, SHAPE))}
    return {name: torch.full((n,), value).double() for name, value in values.items()}


RADIUS = [f"radius {ball.eps:g}" for ball in probes.radii(LINF, SHAPE)]
SPOILT = [  # signal, probe, the value that speaks against it, how often the allowance applies
    ("the same answer twice", "again", 2.0, 0),
    ("the margin has gradients", "gradient", 0.0, 1),
    ("the margin has gradients", "gradient", math.nan, 1),
    ("the cross-entropy has gradients", "loss gradient", 0.0, 1),
    ("steps raise the loss", "loss 100", 0.1, 1),
    ("the margin never rises", "steps 5", -1.0, 1),
    ("the curve is flat at its end", "steps 100", -1.0, 2),
    ("iterated gradients beat one step and chance", "fgsm", -1.0, 1),
    ("iterated gradients beat one step and chance", "noise", -1.0, 1),
    ("accuracy reaches 0", RADIUS[-1], 1.0, 0),
    ("larger balls break more", RADIUS[-2], 1.0, 1),
    ("steps raise the loss", "loss 100", math.nan, 1),
]


@pytest.mark.parametrize(("signal", "probe", "value", "allowed"), SPOILT)
def test_each_signal_turns_just_above_its_allowance(signal, probe, value, allowed) -> None:
    for n in (N, 1000):
        assert failing(sound_margins(n)) == set()
        most = allowed * int(allowance(n))
        for count, expected in ((most, False), (most + 1, True)):
            found = sound_margins(n)
            found[probe][:count] = value
            assert (signal in failing(found)) is expected, (n, count)


@pytest.mark.parametrize(("rise", "expected"), [(0.04, False), (0.06, True)])
def test_a_clear_rise_of_the_mean_margin_is_a_warning(rise, expected) -> None:
    found = sound_margins()
    found["steps 50"] = found["steps 20"] + rise
    found["steps 100"] = found["steps 50"].clone()
    assert ("the margin never rises" in failing(found)) is expected
    found = sound_margins()  # and within its standard error none
    wide = torch.where(torch.arange(N) % 2 == 0, 1.4, -1.0).double()  # mean 0.2, standard error 0.12
    found["clean"] = torch.full((N,), 3.0).double()
    for k in probes.STEPS:
        found[f"steps {k}"] += 2
    found["steps 50"] = found["steps 20"] + wide
    found["steps 100"] = found["steps 50"].clone()
    assert "the margin never rises" not in failing(found)


def test_an_image_that_any_iterate_breaks_is_not_left() -> None:
    """FGSM breaks ten images; PGD broke them on its way, or from the clean image, and then walked on."""
    for on_the_way in ("steps 10", "clean start"):
        found = sound_margins()
        found["fgsm"][:10] = -1
        assert "iterated gradients beat one step and chance" in failing(found)
        found[on_the_way][:10] = -1
        assert "iterated gradients beat one step and chance" not in failing(found)


def test_images_wrong_when_clean_do_not_count_and_without_a_right_one_there_are_no_curves() -> None:
    results = sound_margins()
    wrong = {"clean": -1, "again": -1, "gradient": 0, "loss gradient": 0, **dict.fromkeys(RADIUS, 5)}
    for name, value in wrong.items():
        results[name][:50] = value
    assert failing(results) == set()
    assert indicators.step_curve(results)[0].accuracy == 0.5
    results, balls = sound_margins() | {"clean": -torch.ones(N)}, probes.radii(LINF, SHAPE)
    (only,) = indicators.failure_indicators(results, LINF, balls)
    assert only.sound
    assert "none of 100" in only.measured
    assert indicators.step_curve(results) == indicators.radius_curve(results, balls) == ()
    assert indicators.gradient_norms(results) is None


def ran(attack: str, broke: int, eps: float = 0.1, norm: str = "Linf", first: int = 0, **more) -> Ran:
    """An attack that broke `broke` images from image `first` on."""
    hit = np.zeros(N, dtype=bool)
    hit[first : first + broke] = True
    return Ran(AttackSpec(attack=attack, norm=norm, eps=eps), hit, more.get("remaining", {}), more.get("warnings", ()))


def auto(broke: int, ce: int | None = None, before_square: int | None = None, **more) -> Ran:
    left = N - broke
    parts = {"apgd-ce": left if ce is None else ce, "fab-t": left if before_square is None else before_square}
    return ran("autoattack", broke, remaining={**parts, "square": left}, **more)


def suite_warnings(*attacks: Ran, objections: tuple[str, ...] = ()) -> set[str]:
    made = indicators.suite_indicators(list(attacks), np.ones(N, dtype=bool), objections)
    return {indicator.name for indicator in made if not indicator.sound}


def test_suites_that_agree_raise_no_warning_and_make_every_comparison() -> None:
    suite = [auto(60), ran("fgsm", 40), ran("pgd", 55), ran("cw", 30, eps=0.5, norm="L2")]
    assert suite_warnings(*suite) == set()
    assert [indicator.name for indicator in indicators.suite_indicators(suite, np.ones(N, dtype=bool))] == [
        "AutoAttack's own flags", "white-box beats black-box", "AutoAttack beats the other attacks",
        "many steps beat one", "PGD agrees with APGD",
    ]  # fmt: skip
    for larger_or_other in (ran("pgd", 90, eps=0.3), ran("cw", 90, norm="L2")):
        assert suite_warnings(auto(60), larger_or_other) == set(), "not compared"
    assert not [*indicators.suite_indicators([ran("cw", 3)], np.ones(N, dtype=bool))]
    assert suite_warnings(auto(60), objections=("it seems to be a randomized defense!",)) == {FLAGS}


FLAGS, SQUARE, BEATEN = "AutoAttack's own flags", "white-box beats black-box", "AutoAttack beats the other attacks"
STEPS, APGD = "many steps beat one", "PGD agrees with APGD"


@pytest.mark.parametrize(
    ("warning", "below", "above"),
    [
        (FLAGS, [auto(60)], [auto(60, warnings=("there are 3 points with zero gradient!",))]),
        (SQUARE, [auto(60, ce=41, before_square=41)], [auto(60, ce=42, before_square=42)]),
        (BEATEN, [auto(60), ran("pgd", 10, first=51)], [auto(60), ran("pgd", 10, first=52)]),
        (BEATEN, [auto(60, eps=0.3), ran("pgd", 10, first=51)], [auto(60, eps=0.3), ran("pgd", 10, first=52)]),
        (STEPS, [ran("pgd", 60), ran("fgsm", 10, first=51)], [ran("pgd", 60), ran("fgsm", 10, first=52)]),
        (APGD, [auto(60, ce=45), ran("pgd", 45)], [auto(60, ce=45), ran("pgd", 44)]),
    ],
)
def test_each_comparison_of_attacks_warns_just_above_its_allowance(warning, below, above) -> None:
    """A smaller ball lies in the larger one."""
    assert warning not in suite_warnings(*below)
    assert warning in suite_warnings(*above)


def test_an_example_that_every_attack_missed_is_a_warning_by_itself() -> None:
    probed = np.zeros(N, dtype=bool)
    probed[[3, 70]] = True
    suite = [ran("pgd", 60), ran("fgsm", 5), ran("pgd", N, eps=0.3), ran("cw", N, norm="L2")]
    missed = indicators.probes_find_nothing_new(suite, probed, LINF)
    assert not missed.sound
    assert missed.measured.endswith("left there: 1")
    probed[70] = False
    assert indicators.probes_find_nothing_new(suite, probed, LINF).sound
    assert indicators.probes_find_nothing_new(suite[2:], probed, LINF) is None
