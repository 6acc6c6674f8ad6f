"""`rvb compare-engines`: what it counts, with attacks that do as they are told, and both engines on a linear model."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from tiny_models import Linear, grey_images

from benchmark.attacks import autoattack
from benchmark.commands import compare_engines as command
from benchmark.commands.compare_engines import compare_row
from benchmark.data.prepare import prepare
from benchmark.evaluation import engine_comparison
from benchmark.evaluation.engine_comparison import compare
from benchmark.loading import methods, rows, submissions, tracks
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import AttackSpec

SPEC = AttackSpec(attack="autoattack", norm="L2", eps=3.0, seed=5)


@pytest.fixture
def linear() -> tuple[Linear, torch.Tensor, torch.Tensor]:
    """A linear model, seven images near grey and their labels; the last label is wrong."""
    model, images = Linear().eval().requires_grad_(False), grey_images(7)
    labels = model(images).argmax(1)
    labels[6] = (labels[6] + 1) % 4
    return model, images, labels


class Obedient:
    """Stands in for `autoattack.attack`: breaks the images it is told to, by engine and component."""

    def __init__(self, orders: dict[tuple[str, str], set[int]]) -> None:
        self.orders, self.calls = orders, []

    def __call__(self, model, images, labels, threat, *, seed, component, engine, indices, slots):
        self.calls.append((engine, component, indices, seed))
        found = images.clone()
        for place, image in enumerate(indices):
            if image in self.orders.get((engine, component), set()):
                toward = model.weight[(labels[place] + 1) % 4] - model.weight[labels[place]]
                found[place] += (threat.eps * 0.99 * toward / toward.norm()).view_as(found[place])
        return found.clamp(0, 1)


def test_verdicts_disagreements_and_margins_are_those_of_the_engines(linear, monkeypatch) -> None:
    model, images, labels = linear
    attack = Obedient(
        {
            ("reference", "apgd-ce"): {0},
            ("fast", "fab-t"): {0},  # later, and with another component: still the same verdict
            ("reference", "apgd-t"): {1},
            ("fast", "square"): {3},
        }
    )
    monkeypatch.setattr(autoattack, "attack", attack)
    found = compare(model, images, labels, SPEC, batch_size=4)
    reference, fast = found.runs["reference"], found.runs["fast"]
    assert reference.robust.tolist() == [False, False, True, True, True, True, False]
    assert fast.robust.tolist() == [False, True, True, False, True, True, False]
    assert reference.remaining == {"apgd-ce": 5, "apgd-t": 4, "fab-t": 4, "square": 4}
    assert fast.remaining == {"apgd-ce": 6, "apgd-t": 6, "fab-t": 5, "square": 4}
    assert [(d.image, d.engine, d.component) for d in found.disagreements] == [
        (1, "reference", "apgd-t"),
        (3, "fast", "square"),
    ]
    for d in found.disagreements:
        assert d.margin < 0 < d.clean_margin
        assert d.clean_margin == float(found.clean[d.image])
    assert set(reference.seconds) == set(fast.seconds) == set(autoattack.components)
    assert min(*reference.seconds.values(), *fast.seconds.values()) >= 0
    # each component gets what stood before it, with its place in the whole, in batches, and the seed
    assert attack.calls[:4] == [
        ("reference", "apgd-ce", [0, 1, 2, 3], 5),
        ("reference", "apgd-ce", [4, 5], 5),
        ("fast", "apgd-ce", [0, 1, 2, 3], 5),
        ("fast", "apgd-ce", [4, 5], 5),
    ]
    assert attack.calls[4:6] == [("reference", "apgd-t", [1, 2, 3, 4], 5), ("reference", "apgd-t", [5], 5)]


def test_an_engine_that_leaves_the_ball_is_named(linear, monkeypatch) -> None:
    model, images, labels = linear
    attack = Obedient({("fast", "apgd-t"): {2}})
    monkeypatch.setattr(
        autoattack,
        "attack",
        lambda *a, **k: attack(*a, **k) if k["engine"] == "reference" else 1 - a[1],
    )
    tight = SPEC.model_copy(update={"eps": 1e-3})
    with pytest.raises(BenchmarkError, match=r"autoattack-L2-0\.001 \(fast\) left its L2 0\.001 ball"):
        compare(model, images, labels, tight, batch_size=4)


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_both_engines_agree_with_the_exact_radius(norm, linear, monkeypatch) -> None:
    """The real engines, white-box components alone: a linear model's radius decides which images stand."""
    model, images, labels = linear
    radius = model.radius(images, labels, norm)
    right = model(images).argmax(1) == labels
    low, high = radius[right].sort().values[2:4]
    assert high > 1.02 * low
    monkeypatch.setattr(autoattack, "components", ("apgd-ce", "apgd-t"))
    spec = AttackSpec(attack="autoattack", norm=norm, eps=float((low * high).sqrt()))
    found = compare(model, images, labels, spec, batch_size=7)
    expected = right & (radius > spec.eps)
    assert int(expected.sum()) == 3
    for run in found.runs.values():
        assert torch.equal(run.robust, expected)
        assert ((run.margin < 0) == ~run.robust).all()
    assert not found.disagreements


@pytest.fixture
def trained(tmp_path, monkeypatch) -> str:
    """A digits row that has weights (untrained ones) and data, in a folder of its own."""
    monkeypatch.setattr(rows, "WORK", tmp_path)
    track = tracks.load("digits")
    prepare(track.data, tmp_path / "digits" / "data")
    model = methods.build(submissions.load("Havens2024LoFAST"), "mean_pool", track)
    folder = tmp_path / "digits" / "Havens2024LoFAST-mean_pool" / "train"
    folder.mkdir(parents=True)
    save_file(model.state_dict(), folder / "model.safetensors")
    return "Havens2024LoFAST-mean_pool"


def test_a_row_is_compared_under_each_autoattack_of_its_track(trained, monkeypatch) -> None:
    monkeypatch.setattr(engine_comparison, "compare", lambda *arguments, **options: (arguments, options))
    found = compare_row("digits", trained, 6, 9)
    specs = [arguments[3] for arguments, _ in found]
    assert [(s.attack, s.norm, s.eps, s.seed) for s in specs] == [
        ("autoattack", "Linf", 0.15, 9),
        ("autoattack", "L2", 0.5, 9),
        ("autoattack", "L2", 1.0, 9),
    ]
    (_, images, labels, _), options = found[0]
    assert (images.shape, labels.shape, options["batch_size"]) == ((6, 1, 8, 8), (6,), 100)
    arguments, _ = compare_row("digits", trained, None, None)[0]
    assert (len(arguments[1]), arguments[3].seed) == (100, 0)
    assert torch.equal(arguments[1][:6], images)


def test_what_cannot_be_compared_is_one_line(trained, tmp_path, monkeypatch) -> None:
    with pytest.raises(BenchmarkError, match=r"model\.safetensors is missing"):
        compare_row("digits", "Wong2020Fast-linf", None, None)
    with pytest.raises(BenchmarkError, match="Wong2020Fast"):
        compare_row("digits", "Wong2020Fats-linf", None, None)
    with pytest.raises(BenchmarkError, match="100 evaluation images to attack; 101 are too many"):
        compare_row("digits", trained, 101, None)
    track = tracks.load("digits")
    papers = {"papers": track.suites["papers"]}
    monkeypatch.setattr(tracks, "load", lambda name: track.model_copy(update={"suites": papers}))
    with pytest.raises(BenchmarkError, match="track digits runs no AutoAttack"):
        compare_row("digits", trained, None, None)


def test_the_command_prints_counts_times_and_each_disagreement(linear, monkeypatch, capsys) -> None:
    model, images, labels = linear
    monkeypatch.setattr(autoattack, "attack", Obedient({("fast", "square"): {3}}))
    found = compare(model, images, labels, SPEC, batch_size=7)
    found.runs["reference"].seconds["square"], found.runs["fast"].seconds["square"] = 6.0, 1.5
    monkeypatch.setattr(
        command, "compare_row", lambda *arguments: [found] if arguments == ("digits", "A-b", None, 5) else []
    )
    command.compare_engines("A-b", "digits", 0, 5)
    printed = capsys.readouterr().out
    assert "A-b on digits, L2 3, seed 5" in printed
    square = next(line for line in printed.splitlines() if "square" in line)
    assert square.split("│")[1:-1] == [f" {cell:<{len(part) - 2}} " for cell, part in zip(
        ("square", "6", "5", "6.00", "1.50", "4.00"), square.split("│")[1:-1], strict=True
    )]  # fmt: skip
    assert "the same verdict on 6 of 7 images (6 right when clean)" in printed
    assert "image 3: only the fast engine breaks it, with square: margin -" in printed


@pytest.mark.slow
def test_rvb_compares_the_engines_on_what_the_pipeline_made(built) -> None:
    options = ("--track", "tiny", "--images", "2", "--seed", "3")
    told = built.rvb("compare-engines", "Tiny2026Net-small", *options)
    assert "Tiny2026Net-small on tiny, Linf 0.15, seed 3" in told.stdout
    assert "the same verdict on 2 of 2 images" in told.stdout
    assert "fast: square on " in told.stderr
    told = built.rvb("compare-engines", "Tiny2026Net-smal", *options, check=False)
    assert told.returncode == 1
    assert told.stderr.strip() == "error: Tiny2026Net has no variant 'smal'; did you mean 'small'?"
