"""The measure `jacobian`: what it returns of known blocks, and what it refuses."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from benchmark.layers import encoder_jacobian as analysis
from benchmark.layers.residual import Residual
from benchmark.runtime.errors import BenchmarkError
from benchmark.studies.measures.jacobian import measure

IMAGES = torch.linspace(0, 1, 12).view(4, 1, 1, 3)  # tokens (4, 1, 3): a pixel each
LABELS = torch.zeros(4, dtype=torch.int64)


class Square(nn.Module):
    """x^2 token by token: sigma_max of the branch is twice the largest entry."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x**2


def model() -> tuple[nn.Sequential, list[tuple[str, nn.Module]]]:
    network = nn.Sequential(nn.Flatten(1, 2), Residual(Square()), Residual(nn.Dropout(0.5)), nn.Flatten()).eval()
    return network, [("first", network[1]), ("last", network[2])]


def test_it_returns_quantiles_means_counts_and_each_image_s_value() -> None:
    network, blocks = model()
    measured = measure(network, IMAGES, LABELS, seed=0, blocks=blocks, quantities=("sigma_max", "encoder"))
    largest = 2 * IMAGES.amax((1, 2, 3)).double()
    torch.testing.assert_close(measured["sigma_max of first"], largest, rtol=1e-6, atol=0)
    assert measured["sigma_max of last"].tolist() == pytest.approx([1.0] * 4)
    assert measured["x"] == pytest.approx([i / 20 for i in range(21)])
    curve = measured["sigma_max: first"]
    assert (len(curve), curve[0], curve[20]) == (21, pytest.approx(float(largest[0])), pytest.approx(2.0))
    assert curve[10] == pytest.approx(float(largest[1:3].mean()))
    every = torch.cat([largest, torch.ones(4)])
    gain = (1 + largest) * 2
    for key, value in {
        "sigma_max: mean": every.mean(), "sigma_max: sd": every.std(), "encoder: norm": gain.median(),
        "encoder: product of residual gains": gain.median(),
        "encoder: exp of sum of sigma_max": (largest + 1).exp().median(),
    }.items():  # fmt: skip
        assert measured[key] == pytest.approx(float(value)), key
    torch.testing.assert_close(measured["encoder's norm"], gain, rtol=1e-6, atol=0)
    assert not [key for key in measured if "not known" in key or "gain:" in key or "lower bound" in key]


def test_by_default_it_takes_all_four_without_the_encoder() -> None:
    network, blocks = model()
    measured = measure(network, IMAGES, LABELS, seed=0, blocks=blocks, levels=[i / 30 for i in range(31)])
    assert {key.partition(":")[0] for key in measured if ": " in key} == {*analysis.QUANTITIES}
    assert all(len(value) == 31 for value in measured.values() if isinstance(value, list))


def test_what_lanczos_gives_is_called_a_lower_bound_and_what_it_does_not_is_counted(monkeypatch) -> None:
    monkeypatch.setattr(analysis, "DENSE", 0)
    network, blocks = model()
    measured = measure(network, IMAGES, LABELS, seed=0, blocks=blocks)
    assert measured["sigma_max (lower bound): last"][0] == pytest.approx(1.0)
    assert measured["sigma_max (lower bound): mean"] > 0
    assert measured["sigma_max (lower bound): not known"] == measured["norm_bound: not known"] == 0
    assert measured["norm_bound: last"][0] == pytest.approx(1.0)
    unknown = IMAGES.clone()
    unknown[1] = float("nan")
    measured = measure(network, unknown, LABELS, seed=0, blocks=blocks, quantities=["log_norm"])
    assert measured["log_norm (lower bound): not known"] == 1.0, "the second block is linear: known anywhere"
    assert measured["log_norm (lower bound) of first"].isnan().tolist() == [False, True, False, False]


def test_where_the_encoder_is_not_given_the_reason_is_said(capsys) -> None:
    network, blocks = model()
    measured = measure(network, IMAGES, LABELS, seed=0, blocks=blocks[::-1], quantities=("log_norm", "encoder"))
    assert not [key for key in measured if key.startswith("encoder")]
    reason = "the encoder's norm is not given: the output of block 'last' is not the input of block 'first'"
    assert reason in capsys.readouterr().out
    with pytest.raises(BenchmarkError, match=reason):
        measure(network, IMAGES, LABELS, seed=0, blocks=blocks[::-1], quantities=("encoder",))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantities": ["sigma"]}, "unknown quantity 'sigma'; did you mean 'sigma_max'?"),
        ({"quantities": "sigma_max"}, "quantities should be a list of sigma_max, residual_gain"),
        ({"quantities": ()}, "quantities should be a list"),
        ({"levels": [0.0, 0.5, 1.0]}, "levels should be 21 or more, ascending from 0 to 1"),
        ({"levels": [i / 20 for i in range(22)]}, "levels should be 21 or more"),
        ({"levels": [1 - i / 20 for i in range(21)]}, "levels should be 21 or more"),
    ],
)  # fmt: skip
def test_bad_parameters_get_one_clear_line(options, message) -> None:
    network, blocks = model()
    with pytest.raises(BenchmarkError, match=re.escape(message)):
        measure(network, IMAGES, LABELS, seed=0, blocks=blocks, **options)


def test_a_quantity_that_is_known_nowhere_is_refused() -> None:
    network, blocks = model()
    with pytest.raises(BenchmarkError, match="sigma_max is not known for any block and image; leave it out"):
        measure(network, IMAGES * float("nan"), LABELS, seed=0, blocks=blocks[:1])
