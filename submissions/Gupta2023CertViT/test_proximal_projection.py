"""The proximal projection of networks: what each layer keeps, what it is recorded on, what a killed run goes on from."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import partial

import pytest
import torch
from components import assert_out_of_range
from tiny_training import blobs
from torch import nn

from benchmark.layers.attention import ResidualAttention, SelfAttention
from benchmark.layers.attention_l2 import L2Attention
from benchmark.layers.clipped_relu import ClippedReLU
from benchmark.layers.residual import Residual
from benchmark.layers.tokens import MeanPool, Patchify
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.methods import module
from benchmark.training.preparation import Place

projection, records, proximal = (
    module("Gupta2023CertViT", name) for name in ("proximal_projection", "layer_records", "proximal")
)
prepare, layers_of, record = projection.prepare, records.layers_of, records.record
TOLERANCE, residual = proximal.TOLERANCE, proximal.residual
CPU, NAN, INF = torch.device("cpu"), float("nan"), float("inf")


def convolutional() -> nn.Sequential:
    torch.manual_seed(0)
    thresholds = ClippedReLU((6, 3, 3), initial=0.1)
    thresholds.theta.data[:, 0] *= 2
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(inplace=True)),
        nn.Conv2d(4, 6, (4, 3), stride=2, padding=1), thresholds,
        nn.Flatten(), nn.Linear(54, 12), nn.Dropout(0.5), nn.ReLU(), nn.Linear(12, 4),
    )  # fmt: skip


def attentive(attention: Callable[[int, int], nn.Module] = L2Attention) -> nn.Sequential:
    torch.manual_seed(1)
    first = Residual(nn.Sequential(nn.LayerNorm(8), attention(8, 2)))
    second = Residual(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)))
    return nn.Sequential(Patchify(3), nn.Linear(9, 8), first, second, MeanPool(), nn.Linear(8, 4))


def run(model: nn.Module, folder, seed: int = 3, say=lambda _: None, **parameters) -> dict:
    torch.manual_seed(99)  # nothing may depend on it
    return prepare(model, copy.deepcopy(model), blobs(0), Place(folder, seed, CPU, say), **parameters)


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, b.state_dict()[name]) for name, x in a.state_dict().items())


@pytest.mark.parametrize("measure", ["l1", "l1_quantile", "spectral"])
@pytest.mark.parametrize("build", [convolutional, attentive])
def test_each_layer_keeps_its_outputs_and_only_its_weight_changes(tmp_path, build, measure) -> None:
    """Outputs of the layers themselves, called on what the trained network gives them, in one batch of all images."""
    trained, model = build().eval(), build()
    result = run(model, tmp_path, measure=measure, eta=0.1, batch_size=1000, head=True)
    histories = json.loads(json.dumps(result))["layers"]
    changed = {f"{history['name']}.weight" for history in histories}
    assert changed == {
        name for name, value in model.state_dict().items() if not torch.equal(value, trained.state_dict()[name])
    }
    for history in histories:
        seen: list[torch.Tensor] = []
        part = trained.get_submodule(history["name"])
        hook = part.register_forward_hook(lambda _, given, z, seen=seen: seen.extend((given[0].clone(), z.clone())))
        with torch.no_grad():
            trained(blobs(0)[0])
            new = model.get_submodule(history["name"])(seen[0])
        hook.remove()
        active = {"0.0": nn.ReLU(), "1": trained[2], "4": nn.ReLU()} if build is convolutional else {}
        after = active.get(history["name"], nn.Identity())
        y = after(seen[1]).detach()
        missed = new - y
        if not isinstance(after, nn.Identity):
            at_zero, top = y == 0, trained[2].theta if after is trained[2] else torch.tensor(torch.inf)
            missed = torch.where(at_zero, missed.clamp(min=0), torch.where(y == top, missed.clamp(max=0), missed))
        units = 1 if new.ndim == 4 else -1
        distance = float(missed.square().sum(units).mean())
        assert distance == pytest.approx(history["distance"] * history["eta"], rel=1e-3)
        assert history["eta"] == pytest.approx(0.1 * float(y.square().sum(units).mean()), rel=1e-5)
        assert history["distance"] <= 1 + TOLERANCE
        for weight, key in ((part.weight, "norm_before"), (model.get_submodule(history["name"]).weight, "norm_after")):
            exact = torch.linalg.svdvals(weight.detach().double().flatten(1))[0]
            assert history[key] == pytest.approx(float(exact), rel=1e-9)
        assert history["norm_after"] < history["norm_before"]
        new_weight = model.get_submodule(history["name"]).weight
        assert history["zeros"] == pytest.approx(float((new_weight == 0).double().mean()))


def test_many_batches_are_all_kept(tmp_path) -> None:
    trained, model = convolutional().eval(), convolutional()
    result = run(model, tmp_path, batch_size=17, samples=100, outer=3)
    drawn = torch.randperm(120, generator=torch.Generator().manual_seed(3))[:100]
    batches = blobs(0)[0][drawn].tensor_split(6)
    for part, history in zip(layers_of(trained, head=False), result["layers"], strict=True):
        weight = model.get_submodule(part.name).weight.detach().double().flatten(1)
        worst = 0.0
        for x, z in record(part, trained, trained, batches, CPU):
            asked = part.asked(x, z)
            worst = max(worst, float(residual(asked.x @ weight.mT + part.bias(), asked).square().sum(1).mean()))
        assert worst / history["eta"] == pytest.approx(history["distance"], rel=1e-9)
        assert history["distance"] <= 1 + TOLERANCE


def test_what_is_recorded_fits_the_trained_weight() -> None:
    """Unfolded patches, thresholds by position, an activation in place: at the trained weights nothing is missed."""
    trained = convolutional().eval()
    with torch.no_grad():
        trained[0][0].bias -= 0.2
    for part in layers_of(trained, head=True):
        (x, z), *_ = record(part, trained, trained, (blobs(0)[0][:20],), CPU)
        asked = part.asked(x, z)
        before = asked.x @ part.matrix().mT + part.bias()
        assert residual(before, asked).abs().max() < 1e-6
        if part.activation is not None:
            assert (asked.y == 0).any()
            assert (before < -1e-3).any()  # so that the identity would have missed it
        if isinstance(part.activation, ClippedReLU):
            assert (asked.y == asked.high).any()
            assert (before > asked.high + 1e-3).any()


def test_which_activation_follows() -> None:
    relu, clipped = nn.ReLU(), ClippedReLU((6,))
    model = nn.Sequential(
        nn.Sequential(nn.Linear(6, 6), nn.Dropout(), nn.Sequential(nn.Identity())),
        nn.Sequential(relu, nn.Linear(6, 6)),
        relu, nn.Linear(6, 6), nn.Flatten(), clipped, nn.Linear(6, 6), nn.LayerNorm(6),
        Residual(nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 6))), nn.ReLU(), nn.Linear(6, 6),
    )  # fmt: skip
    activations = {part.name: part.activation for part in layers_of(model, head=True)}
    assert activations == {
        "0.0": relu, "1.1": relu, "3": clipped, "6": None, "8.body.0": None, "8.body.2": None, "10": None
    }  # fmt: skip
    assert {*activations} - {part.name for part in layers_of(model, head=False)} == {"10"}


BOUNDED = partial(ResidualAttention, qk_norm=1.0, vo_norm=1.0)


@pytest.mark.parametrize("attention", [L2Attention, SelfAttention, BOUNDED])
def test_the_layers_of_attention(tmp_path, attention) -> None:
    result = run(attentive(attention), tmp_path, outer=2)
    names = [history["name"].removeprefix("2.body.1.") for history in result["layers"] if "2.body.1" in history["name"]]
    expected = {
        L2Attention: (["query", "output"], ["2.body.1.value"]),
        SelfAttention: (["query", "key", "value", "output"], []),
        BOUNDED: ([], []),  # its weights are derived, and bounded already
    }
    assert (names, result["never_called"]) == expected[attention]
    assert [h["matrix"] for h in result["layers"] if h["name"] == "1"] == ["8 x 9 on rows"]


def test_the_same_seed_gives_the_same_bytes(tmp_path) -> None:
    models = [convolutional() for _ in range(3)]
    options = {"samples": 50, "eta": 0.01, "outer": 2}
    histories = [run(model, tmp_path / str(i), seed=min(i, 1), **options) for i, model in enumerate(models)]
    assert same(models[1], models[2])
    assert histories[1] == histories[2]
    assert not same(models[0], models[2])


@pytest.mark.parametrize("rerecord", [False, True])
def test_a_killed_run_resumes_to_the_same_bytes(tmp_path, rerecord) -> None:
    options = {"rerecord": rerecord, "outer": 2, "head": True}
    whole, killed, resumed, told = convolutional(), convolutional(), convolutional(), []
    history = run(whole, tmp_path / "whole", **options)

    def stop(text: str) -> None:
        told.append(text)
        if len(told) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(killed, tmp_path / "killed", say=stop, **options)
    assert len(list((tmp_path / "killed").iterdir())) == 2
    assert run(resumed, tmp_path / "killed", **options) == history
    assert same(resumed, whole)
    assert not same(resumed, convolutional())


@pytest.mark.slow
def test_rerecorded_inputs_are_those_of_the_changed_network(tmp_path) -> None:
    """Then the network's own last outputs are kept; else errors of the layers before add up in them."""
    trained, apart, after = (convolutional() for _ in range(3))
    options = {"head": True, "eta": 0.005, "batch_size": 1000}
    first = run(apart, tmp_path / "apart", **options)["layers"]
    second = run(after, tmp_path / "after", rerecord=True, **options)["layers"]
    assert first[0] == second[0]
    assert torch.equal(apart[0][0].weight, after[0][0].weight)
    with torch.no_grad():
        expected, one, other = (model.eval()(blobs(0)[0]) for model in (trained, apart, after))
    limit = 0.005 * float(expected.square().sum(1).mean())
    assert float((other - expected).square().sum(1).mean()) == pytest.approx(second[-1]["distance"] * limit, rel=1e-3)
    assert float((one - expected).square().sum(1).mean()) > 1.1 * limit


def test_a_layer_whose_trained_weights_no_longer_fit_is_pulled_to_others_that_do(tmp_path) -> None:
    def network() -> nn.Sequential:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(36, 6), nn.Linear(6, 6), nn.Linear(6, 4))
        model[2].weight.data *= 5  # of errors too, which are allowed the same as before it
        return model

    trained, model = network().eval(), network()
    result = run(model, tmp_path, rerecord=True, absolute=True, eta=0.05, gamma=0.3, outer=2)
    second = layers_of(trained, head=False)[1]
    ((x, z),) = record(second, trained, model, (blobs(0)[0],), CPU)
    asked = second.asked(x, z)
    missed = residual(asked.x @ second.matrix().mT + second.bias(), asked)
    assert float(missed.square().sum(1).mean()) > 1.5 * 0.05
    assert result["layers"][1]["distance_before_pull"] > 1 + TOLERANCE
    assert result["layers"][1]["distance"] <= 1


def test_algorithm_1_alone_ends_outside(tmp_path) -> None:
    pulled, alone = (convolutional() for _ in range(2))
    options = {"eta": 0.02, "outer": 1, "inner": 3}
    inside = run(pulled, tmp_path / "pulled", **options)["layers"]
    outside = run(alone, tmp_path / "alone", inside=False, **options)["layers"]
    assert max(history["distance"] for history in outside) > 1 + TOLERANCE
    for kept, free in zip(inside, outside, strict=True):
        assert kept["distance_before_pull"] == free["distance_before_pull"]
        assert free["distance"] == pytest.approx(free["distance_before_pull"], rel=1e-4)  # but for rounding to float32
        assert kept["norm_after"] >= free["norm_after"]


def test_absolute_parameters_are_in_the_layers_units(tmp_path) -> None:
    relative, absolute = nn.Sequential(nn.Flatten(), nn.Linear(36, 5)), nn.Sequential(nn.Flatten(), nn.Linear(36, 5))
    absolute.load_state_dict(relative.state_dict())
    sizes = torch.linalg.svdvals(relative[1].weight.detach().double())
    (first,) = run(relative, tmp_path / "a", head=True, gamma=0.1, eta=0.1)["layers"]
    gamma = 0.1 * float(sizes.sum())
    (second,) = run(absolute, tmp_path / "b", head=True, gamma=gamma, eta=first["eta"], absolute=True)["layers"]
    assert first["distance"] == pytest.approx(second["distance"], rel=1e-6)
    assert torch.allclose(relative[1].weight, absolute[1].weight, atol=1e-7)


class Twice(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(super().forward(x))


def one(*parts: nn.Module) -> nn.Sequential:
    return nn.Sequential(*parts, nn.Flatten(), nn.LazyLinear(4))


SHARED = nn.Linear(36, 36)
REFUSED = [
    (one(nn.Conv2d(1, 4, 3, dilation=2)), "the convolution 0 should have groups 1, dilation 1"),
    (one(nn.Conv2d(1, 1, 3), nn.Conv2d(1, 4, 3, padding="same")), "the convolution 1 should have"),
    (one(nn.Conv2d(1, 4, 3, padding_mode="circular", padding=1)), "the convolution 0 should have"),
    (one(nn.Conv2d(1, 4, 1), nn.Conv2d(4, 4, 3, groups=2)), "the convolution 1 should have"),
    (one(nn.Conv2d(1, 4, 3), nn.Tanh()), "Tanh after the layer 0 is not covered"),
    (one(nn.Flatten(), nn.Linear(36, 9), nn.Dropout(), nn.Sequential(nn.Softplus())), "Softplus after the layer 1"),
    (one(nn.Flatten(), SHARED, nn.ReLU(), SHARED), "the layer 1 shares its weight"),
    (one(nn.Flatten(), Twice(nn.Linear(36, 36))), "calls the layer 1.0 2 times"),
    (one(nn.Flatten(), nn.utils.parametrizations.orthogonal(nn.Linear(36, 36))), "the layer 1 derives its weight"),
    (one(), "Sequential has no nn.Linear or nn.Conv2d below its head"),
    (nn.Sequential(nn.Flatten()), "Sequential has no nn.Linear or nn.Conv2d$"),
]


@pytest.mark.parametrize(("model", "message"), REFUSED)
def test_networks_that_are_refused(tmp_path, model, message) -> None:
    model(blobs(0)[0][:1])
    with pytest.raises(BenchmarkError, match=message):
        run(model, tmp_path)


def test_a_layer_that_puts_out_nothing_needs_an_absolute_eta(tmp_path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.ReLU(), nn.Linear(5, 4))
    model[1].bias.data -= 100
    with pytest.raises(BenchmarkError, match="the layer 1 puts out zeros alone"):
        run(model, tmp_path)
    (history,) = run(model, tmp_path, absolute=True, eta=0.01)["layers"]
    assert history["norm_after"] < history["norm_before"]


def test_outputs_that_changed_inputs_cannot_give_are_refused(tmp_path) -> None:
    """The first layer forgets directions in which the second has its outputs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 36, bias=False), nn.Linear(36, 36, bias=False), nn.Linear(36, 4))
    u, _, vh = torch.linalg.svd(model[1].weight.data)
    sizes = torch.logspace(0, -3, 36)
    model[1].weight.data = u * sizes @ vh
    model[2].weight.data = (1 / sizes)[:, None] * u.mT
    message = r"no weights keep|the layer 2 cannot keep its outputs: .* raise eta or inner"
    with pytest.raises(BenchmarkError, match=message):
        run(model, tmp_path, rerecord=True, measure="l1", eta=0.05)


@pytest.mark.parametrize("options", [{}, {"absolute": True, "measure": "l1_quantile"}])
def test_a_gamma_that_is_a_share_is_below_1(tmp_path, options) -> None:
    with pytest.raises(BenchmarkError, match=r"gamma 1\.5 is a share, and should be below 1"):
        run(convolutional(), tmp_path, gamma=1.5, **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "values"),
    {
        "measure": ["spectrall"], "gamma": (steps := [0, -0.1, "much", NAN, INF]), "eta": steps,
        "relaxation": [0.0, 2.0, -1.0, NAN, True], "outer": (counts := [0, 1.5, True]), "inner": counts,
        "batch_size": counts, "samples": counts,
    }.items(),
)  # fmt: skip
def test_parameters_out_of_their_ranges_are_refused(name, values) -> None:
    for value in values:
        assert_out_of_range(prepare, **{name: value})
