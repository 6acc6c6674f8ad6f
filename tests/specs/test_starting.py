"""Weights to start from: what is taken over, what is new, what preparations change, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import scaling_preparation
import torch
import yaml
from safetensors.torch import load_file, save_file
from tiny_linear_row import SUBMISSION
from torch import nn

from benchmark.data.images import load_split
from benchmark.layers.trained import start_from
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.rows import Network, Row, load_row
from benchmark.specs.run_settings import run_settings
from benchmark.specs.training import TrainingSpec
from benchmark.training.fitting import fit

SMALL = "work/tiny/Tiny2026Linear-small/train/model.safetensors"
SCALING = {"name": "scaling", "parameters": {"factor": 0.5}}


def tuned(**changes) -> Row:
    """Return a row that starts from the linear one."""
    row = load_row("tiny", "Tiny2026Linear-small")
    settings = row.settings.model_copy(update={"training": TrainingSpec.model_validate(recipe(**changes))})
    return replace(row, variant="tuned", settings=settings)


def recipe(**changes) -> dict[str, Any]:
    training = {"objective": "standard", "epochs": 0, "batch_size": 64, "learning_rate": 0.01}
    return training | {"init_from": {"row": "Tiny2026Linear-small"}, "prepare": [SCALING], **changes}


def fitted(row: Row, tmp_path, **options):
    return fit(row, run_settings().train, tmp_path, lambda *_: None, **options)


def assert_halved(weights: dict[str, torch.Tensor]) -> None:
    """Check that the weights are half of those that training starts from."""
    before = load_file(SMALL)
    assert all(torch.equal(weights[name], 0.5 * before[name]) for name in before)


@pytest.mark.slow
def test_without_epochs_the_prepared_weights_are_what_is_kept(linear_row, tmp_path) -> None:
    scaling_preparation.install()
    best, done, result = fitted(tuned(), tmp_path)
    assert_halved(best)
    assert (result.epochs, result.selected_epoch, done.losses) == (0, 0, [])
    assert 0 < result.validation_score <= 1
    (prepared,) = result.prepared
    images = len(load_split(load_row("tiny", "Tiny2026Linear-small").data, "train").labels)
    history = prepared.history["1.weight"]
    assert history["images"] == images
    assert (prepared.name, prepared.history) == ("scaling", {"1.weight": history, "1.bias": history}), "parts draw alike"


@pytest.mark.slow
def test_a_killed_preparation_goes_on_with_the_layer_that_it_lost(linear_row, tmp_path) -> None:
    scaling_preparation.install()
    whole, _, first = fitted(tuned(epochs=2), tmp_path / "whole")
    killed = {"name": "scaling", "parameters": {"factor": 0.5, "kill": "1.bias"}}
    with pytest.raises(KeyboardInterrupt):
        fitted(tuned(epochs=2, prepare=[killed]), tmp_path / "c")
    assert scaling_preparation.worked(tmp_path / "c") == ["1.weight"]
    resumed, _, second = fitted(tuned(epochs=2), tmp_path / "c")
    assert scaling_preparation.worked(tmp_path / "c") == ["1.weight", "1.bias"]
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert first == second


@pytest.mark.slow
def test_prepared_weights_compete_with_the_epochs(linear_row, tmp_path) -> None:
    scaling_preparation.install()
    attack = {"attack": "fgsm", "norm": "Linf", "eps": 0.001}
    _, _, result = fitted(tuned(epochs=1, learning_rate=50.0, objective="adversarial", attack=attack), tmp_path)
    assert (result.selected_epoch, result.epochs, result.overfitting) == (0, 1, None)


@pytest.mark.slow
def test_another_network_is_built_beside_and_only_first(linear_row, tmp_path) -> None:
    scaling_preparation.install(other=True)
    row = tuned()
    best, _, result = fitted(row, tmp_path)
    assert_halved(best)
    assert result.init_sha256
    training = row.settings.training.model_copy(update={"prepare": 2 * row.settings.training.prepare})
    twice = replace(row, settings=row.settings.model_copy(update={"training": training}))
    with pytest.raises(BenchmarkError, match="makes a network of another; let it be the first"):
        fitted(twice, tmp_path / "two")


CLASSES = """\
from torch import nn


class Layer(nn.Linear):
    pass


def build(data):
    return nn.Sequential(nn.Flatten(), Layer(64, 10))


def attention(model):
    if not isinstance(model[1], Layer):
        raise TypeError("no layer of this file")
    return []
"""
COPYING = """\
from .method import Layer

OTHER_ARCHITECTURE = True


def prepare(model, start, train_split, place):
    if not all(isinstance(network[1], Layer) for network in (model, start)):
        raise TypeError("no layer of method.py")
    model.load_state_dict(start.state_dict())
    return {}
"""


def test_both_networks_of_a_preparation_have_the_classes_of_one_import_of_method_py(linear_row, tmp_path) -> None:
    """Those that the preparation's file imports, and later functions of method.py."""
    folder = Path("submissions/Tiny2026Linear")
    (folder / "method.py").write_text(CLASSES)
    (folder / "copying.py").write_text(COPYING)
    fitted(tuned(prepare=[{"name": "copying"}]), tmp_path)
    with pytest.raises(BenchmarkError, match=r"must return a list of AttentionWeights, not an empty one"):
        fitted(tuned(prepare=[{"name": "copying"}], epochs=1, penalties=[{"name": "msvp"}]), tmp_path / "penalty")


@pytest.mark.slow
def test_a_network_of_a_study_starts_from_the_cells_that_it_names(linear_row, tmp_path) -> None:
    scaling_preparation.install()
    row = tuned(init_from={"cell": "plain"})
    with pytest.raises(BenchmarkError, match="the preparation scaling works on a trained network; name its row by"):
        fitted(row, tmp_path / "none")
    start = load_row("tiny", "Tiny2026Linear-small")
    network = Network(study="Tiny2026Linear-s", cell="on", seed=0, images=1, measures=(), start=start)
    assert_halved(fitted(replace(row, network=network), tmp_path)[0])


@pytest.mark.slow
def test_epochs_are_selected_by_what_a_certificate_proves(linear_row, tmp_path) -> None:
    chosen = {"by": "certified", "certificate": "lipschitz", "radius": 0.02}
    _, done, result = fitted(tuned(prepare=[], epochs=2, selection=chosen), tmp_path)
    assert result.selected_by == "validation accuracy certified by lipschitz at L2 0.02"
    assert done.best_score == max(done.scores) > 0
    _, easier, _ = fitted(tuned(prepare=[], epochs=2, selection={**chosen, "radius": 0.001}), tmp_path / "easier")
    assert easier.best_score >= done.best_score


FORGETFUL = """\
from torch import nn


class Linear(nn.Linear):
    scale = 1.0

    def forward(self, x):
        self.scale += 0.1 if self.training else 0.0
        return super().forward(self.scale * x)


def build(data):
    return nn.Sequential(nn.Flatten(), Linear(64, 10))
"""


DOUBLE = """\
import numpy as np
import torch
from torch import nn


class Basis(nn.Linear):
    def __init__(self):
        super().__init__(64, 10)
        self.register_buffer("basis", torch.eye(64).double())

    def forward(self, x):
        return super().forward((x.double() @ self.basis).float()) + NOISE


def build(data):
    return nn.Sequential(nn.Flatten(), Basis())
"""


@pytest.mark.parametrize("noise", ["0", "float(np.random.rand())"])
def test_buffers_of_other_precision_and_random_models_are_kept(linear_row, tmp_path, noise) -> None:
    Path("submissions/Tiny2026Linear/method.py").write_text(DOUBLE.replace("NOISE", noise))
    best, _, _ = fitted(load_row("tiny", "Tiny2026Linear-small"), tmp_path)
    assert best["1.basis"].dtype == torch.float64


def test_a_model_that_learns_what_no_state_dict_keeps_is_refused(linear_row, tmp_path) -> None:
    Path("submissions/Tiny2026Linear/method.py").write_text(FORGETFUL)
    with pytest.raises(BenchmarkError, match="the state_dict is all that is kept"):
        fitted(load_row("tiny", "Tiny2026Linear-small"), tmp_path)


def test_zeros_are_kept_only_where_there_are_some(linear_row, tmp_path) -> None:
    scaling_preparation.install()
    with pytest.raises(BenchmarkError, match="keep_zeros keeps nothing"):
        fitted(tuned(keep_zeros=True), tmp_path)
    fitted(tuned(keep_zeros=True, prepare=[{"name": "scaling", "parameters": {"factor": 0.0}}]), tmp_path / "zeros")


def test_parameters_of_a_preparation_are_checked(linear_row, tmp_path) -> None:
    scaling_preparation.install()
    for parameters, words in (
        ({"faktor": 1.0}, "unknown parameter 'faktor'; did you mean 'factor'"),
        ({"factor": "much"}, "factor much should be"),
    ):
        with pytest.raises(BenchmarkError, match=f"preparation scaling: {words}"):
            fitted(tuned(prepare=[{"name": "scaling", "parameters": parameters}]), tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"init_from": {"cell": "plain"}, "prepare": []}, "a `cell` is for studies; name a `row`"),
        ({"prepare": [{"name": "scalign"}]}, "no preparation named 'scalign'; did you mean 'scaling'"),
    ],
)
def test_a_row_that_starts_from_what_no_row_may_is_refused(linear_row, changes, words) -> None:
    content = yaml.safe_load(SUBMISSION)
    scaling_preparation.install()
    training = recipe(epochs=1, **changes)
    content["variants"]["tuned"] = {"title": "Tuned", "tracks": {"tiny": {"training": training}}}
    Path("submissions/Tiny2026Linear/submission.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(BenchmarkError, match=words):
        load_row("tiny", "Tiny2026Linear-tuned")


def net(classes: int = 3, width: int = 4) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, width), nn.Linear(width, classes))


def test_all_but_the_new_parts_are_taken_over(tmp_path) -> None:
    source, model = net(classes=3), net(classes=5)
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    head = model[2].weight.clone()
    assert start_from(model, tmp_path / "w.safetensors", ("2",)) == files.sha256_file(tmp_path / "w.safetensors")
    assert torch.equal(model[1].weight, source[1].weight)
    assert torch.equal(model[1].bias, source[1].bias)
    assert torch.equal(model[2].weight, head)


@pytest.mark.parametrize(
    ("model", "new", "words"),
    [
        (net(5), (), r"2\.bias is shape \(3,\) in .* and shape \(5,\) in this model; name it in `new`"),
        (net(5), ("3",), "the model has no part '3'"),
        (net(3, 6), ("2",), r"1\.bias is shape \(4,\)"),
        (net(3)[:2], (), r"2\.bias is shape \(3,\) in .* and nothing in this model"),
        (nn.Sequential(*net(3), nn.Linear(3, 3)), (), r"3\.bias is nothing in .* and shape \(3,\)"),
        (net(5), ("2.weight",), r"2\.bias is shape"),
    ],
)
def test_what_does_not_fit_is_refused_not_skipped(tmp_path, model, new, words) -> None:
    save_file(net(3).state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(BenchmarkError, match=words):
        start_from(model, tmp_path / "w.safetensors", new)
