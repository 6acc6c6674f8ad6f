"""Penalties: their place in the step, their state, the singular values that they see."""

from __future__ import annotations

import pytest
import torch
from tiny_models import attentive
from tiny_training import run, spec
from torch import nn

from benchmark.layers.attention_l2 import L2Attention
from benchmark.layers.attention_weights import attention_weights
from benchmark.layers.tokens import Patchify
from benchmark.runtime.errors import BenchmarkError
from benchmark.training import standard
from benchmark.training.objective import Penalty
from benchmark.training.penalties import msvp


def made(model: nn.Module, **parameters) -> Penalty:
    return msvp.penalty(model, lambda: attention_weights(model), **parameters)


def exact(model: nn.Module, **factors: float) -> float:
    """The penalty by dense SVD."""
    weights = ((factor, layer.role(role)) for layer in attention_weights(model) for role, factor in factors.items())
    return sum(factor * torch.linalg.matrix_norm(weight, ord=2).square().sum().item() for factor, weight in weights)


def advanced(penalty: Penalty, steps: int = 300) -> float:
    for _ in range(steps):
        penalty.advance()
    return penalty().item()


def test_the_power_steps_reach_the_dense_norms_from_below_and_their_gradient() -> None:
    model = attentive()
    penalty = made(model, lambda_q=1.0, lambda_k=2.0, lambda_v=3.0, lambda_o=0.5)
    expected = exact(model, query=1.0, key=2.0, value=3.0, output=0.5)
    before, after = penalty().item(), advanced(penalty)
    assert before < after <= expected * (1 + 1e-6)
    assert after == pytest.approx(expected, rel=1e-4)
    penalty().backward()
    weight = model[2].body[1].query.weight
    for head in range(2):  # 2 sigma u v^T of each head's own rows
        rows = weight.detach()[4 * head : 4 * head + 4]
        u, s, vh = torch.linalg.svd(rows)
        assert torch.allclose(weight.grad[4 * head : 4 * head + 4], 2 * s[0] * torch.outer(u[:, 0], vh[0]), atol=1e-4)


def test_columns_cut_the_input_channels_as_the_released_code_does() -> None:
    model = attentive()
    weight = model[2].body[1].value.weight.detach()  # (out, in)
    expected = sum(float(torch.linalg.matrix_norm(weight[:, 4 * h : 4 * h + 4], ord=2)) ** 2 for h in range(2))
    assert advanced(made(model, lambda_v=1.0, heads="columns")) == pytest.approx(expected, rel=1e-4)
    assert expected != pytest.approx(exact(model, value=1.0), rel=1e-2)


class Counting(Penalty):
    """The largest weight's square, counting how often its state moves."""

    def __init__(self, model: nn.Module, factor: float = 1.0) -> None:
        super().__init__()
        self._weight, self.factor, self.read = [model[-1].weight], factor, []
        self.register_buffer("moved", torch.zeros(()))

    def forward(self) -> torch.Tensor:
        self.read.append(float(self.moved))
        return self.factor * self._weight[0].square().sum()

    def advance(self) -> None:
        self.moved += 1


@pytest.mark.parametrize("options", [{}, {"sam": 0.1}, {"accumulation": 3}, {"sam": 0.1, "accumulation": 2}])
def test_its_state_moves_once_an_optimiser_step(tmp_path, options) -> None:
    model = attentive()
    penalty = Counting(model)
    rules = spec(epochs=1, batch_size=24, **options)
    run(model, standard.objective(None), rules, tmp_path / "c", penalties={"own": penalty})
    steps = -(-120 // (24 * options.get("accumulation", 1)))
    assert float(penalty.moved) == steps
    each = 2 if "sam" in options else 1  # both gradients of SAM read the same state
    assert penalty.read == [float(step) for step in range(1, steps + 1) for _ in range(each)]


def test_it_is_added_once_whatever_the_batches_that_make_a_step(tmp_path) -> None:
    weights = []
    for sizes in ({"batch_size": 120}, {"batch_size": 40, "accumulation": 3}):
        model = attentive()
        penalties = {"own": Counting(model, 0.1)}
        rules = spec(epochs=2, optimizer="sgd", **sizes)
        _, done = run(model, standard.objective(None), rules, tmp_path / f"{len(weights)}", penalties=penalties)
        weights.append((model[-1].weight.detach(), done.losses))
    assert torch.allclose(weights[0][0], weights[1][0], atol=1e-5)
    assert weights[0][1] == pytest.approx(weights[1][1], rel=1e-5)


def test_factors_of_zero_change_no_byte(tmp_path) -> None:
    weights = []
    for name in ("without", "with"):
        model = attentive()
        penalties = {"msvp": made(model)} if name == "with" else {}
        best, _ = run(model, standard.objective(None), spec(epochs=2), tmp_path / name, penalties=penalties)
        weights.append(best)
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_penalty_that_is_not_finite_stops_like_a_loss(tmp_path) -> None:
    model = attentive()
    with pytest.raises(BenchmarkError, match=r"the penalty own is inf in epoch 1; .* no checkpoint"):
        run(model, standard.objective(None), spec(), tmp_path / "c", penalties={"own": Counting(model, float("inf"))})


def test_a_factor_for_a_role_that_a_layer_lacks_is_refused() -> None:
    model = nn.Sequential(Patchify(3), nn.Linear(9, 8), L2Attention(8, 2))
    with pytest.raises(BenchmarkError, match=r"attention 1 has no key weight of its own; leave lambda_k out"):
        made(model, lambda_k=1e-3)
    assert made(model, lambda_q=1e-3)().item() > 0
    assert made(model)().item() == 0
    with pytest.raises(BenchmarkError, match="has no attention layer that is known here"):
        made(nn.Sequential(nn.Flatten(), nn.Linear(36, 4)), lambda_q=1e-3)


def test_a_weight_that_was_zero_is_seen_again() -> None:
    """A projection or head that starts at zero has no singular vector; the power step waits until there is one."""
    model = attentive()
    weight = model[2].body[1].output.weight
    before = weight.detach().clone()
    weight.data.zero_()
    penalty = made(model, lambda_o=1.0)
    at_zero = advanced(penalty, 1)
    weight.data.copy_(before)
    assert advanced(penalty, 100) > at_zero + 0.01
