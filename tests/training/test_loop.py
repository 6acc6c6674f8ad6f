"""Training: exact resume, selection on validation images, zeros that stay, losses that are not finite."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open
from tiny_models import Linear, attentive
from tiny_training import blobs, model, resumed_to_the_same_bytes, run, spec
from torch import nn

from benchmark.attacks import pgd
from benchmark.attacks.prediction import margins
from benchmark.layers.attention_weights import attention_weights
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.torch_setup import tensor_float32
from benchmark.specs.threat import ThreatModel
from benchmark.training import adversarial, gloro, margin, standard
from benchmark.training.objective import accuracy
from benchmark.training.penalties import msvp
from benchmark.training.steps import lr_factor


def attack(network, images, labels, eps_factor):
    threat = ThreatModel(norm="Linf", eps=0.1 * eps_factor)
    return pgd.attack(network, images, labels, threat, seed=None, steps=2, step_size=0.1)


def sparse() -> nn.Module:
    made = model()
    with torch.no_grad():
        made[1].weight[:, ::2] = 0
        made[4].bias[:] = 0
    return made


# network, objective, recipe, and the epochs before the stop; test_loop_options.py has the case with every option
RESUMED = {
    "sgd": (model, lambda: adversarial.objective(attack), {"epochs": 4, "warmup_epochs": 2, "optimizer": "sgd"}, 2),
    "zeros of the start": (sparse, standard.objective, {"keep_zeros": True}, 2),
    "norms": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 4)),
        lambda: gloro.objective(None, radius=0.2),
        {"epochs": 3, "warmup_epochs": 2, "batch_size": 40, "sam": 0.05, "ema": 0.9, "accumulation": 2},
        2,
    ),
    "penalty": (attentive, standard.objective, {"epochs": 3, "sam": 0.05, "ema": 0.9, "accumulation": 2}, 1),
}


@pytest.mark.sweep
@pytest.mark.parametrize("case", RESUMED)
def test_a_stopped_run_resumes_to_the_same_bytes(tmp_path, case) -> None:
    make, objective, rules, stop = RESUMED[case]

    def start(place: str, **more):
        torch.manual_seed(0)
        network, goal, penalties = make(), objective(), {}
        if case == "penalty":
            penalties["msvp"] = msvp.penalty(network, lambda: attention_weights(network), lambda_q=0.1, lambda_v=0.2)
        result = run(network, goal, spec(**rules), tmp_path / place, penalties=penalties, **more)
        state = {"norms": getattr(goal, "norms", None), "penalty": penalties.get("msvp")}
        return result, state[case].state_dict() if case in state else {}

    assert bool(resumed_to_the_same_bytes(start, stop)) is (case in ("norms", "penalty"))


@pytest.mark.parametrize("options", [{}, {"ema": 0.5}, {"optimizer": "sgd", "sam": 0.05, "accumulation": 2}])
def test_zeros_of_matrices_stay_and_all_else_learns(tmp_path, options) -> None:
    network = sparse()
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    best, _ = run(network, standard.objective(None), spec(keep_zeros=True, **options), tmp_path / "c")
    for weights in (best, network.state_dict()):
        assert not weights["1.weight"][:, ::2].any()
        assert (weights["1.weight"][:, 1::2] != before["1.weight"][:, 1::2]).any()
        assert weights["4.bias"].any(), "vectors are free"
    free, _ = run(sparse(), standard.objective(None), spec(**options), tmp_path / "free")
    assert free["1.weight"][:, ::2].any()


def test_gradients_of_zeros_that_stay_count_in_no_norm(tmp_path) -> None:
    """One step of rate 1 whose gradient is clipped to 0.05 is as long as that, wherever the gradient was larger."""
    network = sparse()
    before = [p.detach().clone() for p in network.parameters()]
    rules = {
        "optimizer": "sgd",
        "learning_rate": 1.0,
        "epochs": 1,
        "batch_size": 512,
        "schedule": "constant",
        "clip_norm": 0.05,
        "keep_zeros": True,
    }
    run(network, standard.objective(None), spec(**rules), tmp_path / "c")
    moved = torch.cat([(p.detach() - old).flatten() for p, old in zip(network.parameters(), before, strict=True)])
    assert moved.norm().item() == pytest.approx(0.05, rel=1e-3)


def test_scores_are_taken_in_float32_where_training_is_not(tmp_path) -> None:
    seen = []

    def score(network, images, labels) -> float:
        seen.append(torch.backends.cuda.matmul.allow_tf32)
        return 0.5

    with tensor_float32(True):
        run(model(), standard.objective(None), spec(epochs=2), tmp_path / "c", metric=score)
        seen.append(torch.backends.cuda.matmul.allow_tf32)
    assert seen == [False, False, True]


class Counting(standard.Standard):
    """Keeps how many steps it has seen, and holds the last bias below 0.01."""

    def attach(self, network, images):
        assert images.shape == (1, 1, 6, 6)
        self.state, self.order = nn.Module(), []
        self.state.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        return self.state

    def advance(self) -> None:
        self.state.steps += 1
        self.order.append("advance")

    def loss(self, network, images, labels, eps_factor):
        self.order.append("loss")
        return super().loss(network, images, labels, eps_factor)

    def after_step(self, network) -> None:
        self.order.append("after")
        network[4].bias.clamp_(max=0.01)


@pytest.mark.parametrize("options", [{}, {"accumulation": 2}, {"sam": 0.05}])
def test_an_objective_moves_its_state_once_a_step_and_has_the_last_word(tmp_path, options) -> None:
    objective = Counting()
    best, _ = run(model(), objective, spec(epochs=1, batch_size=32, **options), tmp_path / "c")
    losses = 1 if not options else 2  # of the first step
    assert objective.order[: losses + 2] == ["advance", *["loss"] * losses, "after"]
    assert int(objective.state.steps) == objective.order.count("after") == objective.order.count("advance")
    assert best["4.bias"].max() <= 0.01


def test_the_best_validation_epoch_is_returned(tmp_path) -> None:
    scores, states = iter([0.1, 0.9, 0.9, 0.2, 0.3, 0.4]), []

    def score(network, images, labels) -> float:
        assert len(labels) == 40, "the score may look at validation images only"
        states.append({name: t.clone() for name, t in network.state_dict().items()})
        return next(scores)

    best, done = run(model(), standard.objective(None), spec(), tmp_path / "checkpoint", metric=score)
    assert done.best_epoch == 2
    assert all(torch.equal(best[name], states[1][name]) for name in best)


def test_training_learns(tmp_path) -> None:
    network = model()
    best, done = run(network, standard.objective(None), spec(epochs=12), tmp_path / "checkpoint")
    network.load_state_dict(best)
    assert accuracy(network, *blobs(2)) > 0.95
    assert done.losses[-1] < done.losses[0]


class Breaking(standard.Standard):
    """In the step of this number the loss is NaN, or it is finite and its gradient NaN."""

    def __init__(self, step: int, *, gradient: bool) -> None:
        super().__init__()
        self.left, self.gradient = step, gradient

    def loss(self, network, images, labels, eps_factor):
        self.left -= 1
        value = super().loss(network, images, labels, eps_factor)
        wrong = (0 * next(network.parameters()).sum()).sqrt() if self.gradient else torch.tensor(float("nan"))
        return value + wrong if self.left == 0 else value


@pytest.mark.parametrize(
    ("step", "gradient", "message"),
    [
        (1, False, r"^the training loss is nan in epoch 1; .* No epoch was finished"),
        (9, False, r"^the training loss is nan in epoch 2; .* after epoch 1, is kept in .*/c"),
        (16, True, r"^weights are not finite in epoch 2; .* after epoch 1, is kept in .*/c"),
    ],
)
def test_what_is_not_finite_stops_before_the_checkpoint(tmp_path, step, gradient, message) -> None:
    """An epoch has eight steps."""
    with pytest.raises(BenchmarkError, match=message):
        run(model(), Breaking(step, gradient=gradient), spec(), tmp_path / "c")
    assert (tmp_path / "c").exists() is (step > 8)
    if step > 8:
        with safe_open(tmp_path / "c", "pt") as stored:
            assert json.loads(stored.metadata()["state"])["progress"]["epoch"] == 1
            assert all(torch.isfinite(stored.get_tensor(name)).all() for name in stored.keys())  # noqa: SIM118


@pytest.mark.parametrize("selected_by", ["", "validation accuracy under pgd-Linf-0.1"])
def test_a_score_that_is_not_finite_stops_before_the_checkpoint_and_is_named(tmp_path, monkeypatch, selected_by) -> None:
    scores = iter((0.5, float("nan")))
    monkeypatch.setattr(standard.Standard, "score", lambda *_: next(scores))
    words = rf", {selected_by or 'validation accuracy'}, is nan in epoch 2\. [^\n]+ after epoch 1, is kept in .*/c$"
    with pytest.raises(BenchmarkError, match=words):
        run(model(), standard.objective(None), spec(), tmp_path / "c", selected_by=selected_by)


def test_margin_objective_by_hand() -> None:
    network = Linear().eval()
    images, labels = torch.rand(5, 1, 6, 6), torch.tensor([0, 1, 2, 3, 0])
    logits = network(images).detach()
    lowered = logits.clone()
    lowered[range(5), labels] -= 0.3
    expected = nn.functional.cross_entropy(7 * lowered, labels)
    objective = margin.objective(None, margin=0.3, temperature=7)
    assert torch.allclose(objective.loss(network, images, labels, 1.0), expected)
    share = (margins(logits, labels) > 0.15).float().mean().item()
    assert objective.score(network, images, labels) == pytest.approx(share)


def test_schedules() -> None:
    cosine = spec(epochs=10, schedule="cosine", rate_warmup_epochs=2, final_rate=0.1)
    assert [lr_factor(cosine, p) for p in (0, 1, 2, 6, 10)] == pytest.approx([0.01, 0.505, 1, 0.55, 0.1])
    constant = spec(epochs=10, schedule="constant", rate_warmup_epochs=2)
    assert [lr_factor(constant, p) for p in (0, 2, 9.9)] == pytest.approx([0.01, 1, 1])
    assert [lr_factor(spec(epochs=10), p) for p in (0, 3, 6.5, 10)] == pytest.approx([0.04, 1, 0.5, 0], abs=1e-12)
