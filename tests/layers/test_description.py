"""Networks rebuilt from descriptions compute the same, and malformed descriptions are refused."""

from __future__ import annotations

import copy
import importlib
import json
import math
import pkgutil
from functools import partial

import pytest
import torch
from mutations import Loud
from tiny_layers import CURVED, LINEAR, Doubled
from torch import nn

import benchmark.layers
from benchmark.layers.attention import AttentionByHeads, Heads, LipschitzNormAttention, ResidualAttention, SelfAttention
from benchmark.layers.attention_l2 import ReleasedL2Attention
from benchmark.layers.attention_window import DotProductWindowAttention, L2WindowAttention, WindowAttention
from benchmark.layers.competitive_attention import Competition
from benchmark.layers.derived import DerivedLinear, DerivedWeight, cache_weights
from benchmark.layers.description import DEPTH, LAYERS, describe, rebuild
from benchmark.layers.kinds import BY_NAME, BY_TYPE
from benchmark.layers.lipschitz import BoundedLinear, NormalisedHead, OrthogonalLinear, SLLBlock, SmoothSLLBlock
from benchmark.layers.normalise import Normalise
from benchmark.layers.residual import Residual
from benchmark.layers.scaled_cosine import ScaledCosineAttention
from benchmark.layers.timm_networks import Xcit
from benchmark.layers.token_convolution import BoundedSliceConvolution, SliceConvolution, _Slices
from benchmark.layers.tokens import LayerProject, TakeToken
from benchmark.layers.vit import timm_vit
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import methods
from benchmark.specs.rows import load_row, load_rows

TOKENS, IMAGE = (4, 4), (2, 4, 4)
VIT = partial(timm_vit, img_size=4, patch_size=2, in_chans=2, num_classes=3, embed_dim=8, depth=2, num_heads=2)

EVERY = [  # layers with arguments other than their defaults, and the shape of one input
    *LINEAR,
    *CURVED.values(),
    (nn.Linear(4, 3, bias=False), TOKENS),
    (nn.Conv2d(2, 4, (3, 1), stride=(1, 2), padding=(1, 0), groups=2, bias=False), IMAGE),
    (nn.Conv2d(2, 3, 3, padding="same", padding_mode="circular", dilation=2), IMAGE),
    (nn.LayerNorm(4, bias=False), TOKENS),
    (nn.Flatten(1, 2), IMAGE),
    (nn.Dropout(0.7), TOKENS),
    (TakeToken(-1), TOKENS),
    (BoundedLinear(4, 3, norm=0.3, bias=False), TOKENS),
    (OrthogonalLinear(4, 6), TOKENS),
    (NormalisedHead(4, 3), TOKENS),
    (SmoothSLLBlock(4, 7, bend=1e-6), TOKENS),
    (ReleasedL2Attention(4, 2), TOKENS),
    (LipschitzNormAttention(4, 2), TOKENS),
    (ScaledCosineAttention(4, 2, eps=1e-12), TOKENS),
    (SliceConvolution(4, 3), TOKENS),
    (BoundedSliceConvolution(4, 3, 0.5), TOKENS),
    (DotProductWindowAttention(4, 2, side=2, window=2, qkv_bias=False), TOKENS),
    (VIT(), IMAGE),
    (Xcit(img_size=8, patch_size=8, in_chans=2, num_classes=3, embed_dim=16, depth=1, num_heads=4, drop_path_rate=0.1), (2, 8, 8)),
]  # fmt: skip


def drawn(layer: nn.Module) -> nn.Module:
    layer, generator = copy.deepcopy(layer).float().eval().requires_grad_(False), torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return layer


def through_json(model: nn.Module) -> nn.Module:
    tree, tensors = describe(model, timm=True)
    return rebuild(json.loads(json.dumps(tree, allow_nan=False)), tensors)


@pytest.mark.parametrize(("layer", "shape"), EVERY, ids=[type(layer).__name__ for layer, _ in EVERY])
def test_a_rebuilt_layer_computes_the_same_bits(layer, shape) -> None:
    layer, x = drawn(layer), torch.randn(5, *shape, generator=torch.Generator().manual_seed(1))
    made = through_json(layer)
    assert torch.equal(made(x), layer(x))
    assert type(made) is type(layer)
    assert not any(module.training for module in made.modules())
    assert not any(parameter.requires_grad for parameter in made.parameters())
    ours, theirs = ({t.data_ptr() for t in network.parameters()} for network in (made, layer))
    assert not ours & theirs
    assert describe(made, timm=True)[0] == describe(layer, timm=True)[0]


def test_every_layer_of_the_benchmark_can_be_described() -> None:
    classes = set()
    for module in pkgutil.iter_modules(benchmark.layers.__path__):
        values = vars(importlib.import_module(f"benchmark.layers.{module.name}")).values()
        classes |= {value for value in values if isinstance(value, type) and issubclass(value, nn.Module)}
    layers = {layer for layer in classes if layer.__module__.startswith("benchmark.layers")}
    bases = {Heads, AttentionByHeads, Competition, DerivedLinear, DerivedWeight, _Slices, WindowAttention}
    assert layers - bases == {layer for layer in BY_TYPE if layer.__module__.startswith("benchmark")}
    assert {type(layer) for layer, _ in EVERY} == {*BY_TYPE}
    assert len(BY_NAME) == len(BY_TYPE)


def test_describing_draws_no_random_numbers_and_ignores_the_default_type() -> None:
    attention = (ResidualAttention(4, 2, qk_norm=1.0, vo_norm=1.0), L2WindowAttention(4, 2, side=4, window=2, shift=1))
    model = drawn(nn.Sequential(*attention))
    before = torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        made = through_json(model)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), before)
    assert {t.dtype for t in (*made.parameters(), *made.buffers()) if t.is_floating_point()} == {torch.float32}


@pytest.mark.parametrize("name", [row.name for row in load_rows("digits")])
def test_a_rebuilt_submission_has_the_same_logits(name) -> None:
    row = load_row("digits", name)
    torch.manual_seed(0)
    model = methods.method(row.submission.name).build(row.track.data, **row.settings.model).eval().requires_grad_(False)
    images = torch.rand(100, *row.track.data.shape, generator=torch.Generator().manual_seed(0))
    made = through_json(model)
    assert torch.equal(made(images), model(images))
    cache_weights(model)
    assert torch.equal(made(images), model(images))


def forge_cache(model: nn.Sequential) -> None:
    cache_weights(model)
    settings, parameters, weight = model[2].query._cached
    model[2].query._cached = (settings, parameters, weight * 3)


HIDDEN = [
    lambda model: model[0].register_forward_hook(lambda _module, _inputs, output: 2 * output),
    lambda model: model[1].register_forward_pre_hook(lambda _module, inputs: (2 * inputs[0],)),
    lambda model: setattr(model[1], "forward", lambda x: 2 * x),
    lambda model: setattr(model[1], "active", lambda z: 5 * z),
    lambda model: setattr(model[0].value, "__class__", Doubled),
    lambda model: setattr(model[0], "factor", 4.0),
    lambda model: setattr(model[2].key, "norm", 4.0),
    lambda model: setattr(model[1], "_compiled_call_impl", lambda x: 2 * x),
    forge_cache,
]


def test_hidden_changes_of_an_object_do_not_come_along() -> None:
    layers = (SelfAttention(4, 2), SLLBlock(4, 4), ResidualAttention(4, 2, qk_norm=1.0, vo_norm=1.0))
    honest, x = nn.Sequential(*map(drawn, layers)), torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(0))
    for change in HIDDEN:
        model = copy.deepcopy(honest)
        change(model)
        made = through_json(model)
        assert torch.equal(made(x), honest(x)), change
        assert not torch.equal(made(x), model(x)), change


def loud() -> nn.Linear:
    layer = nn.Linear(4, 4)
    del layer.weight
    layer.weight = nn.Parameter(torch.ones(4, 4)).as_subclass(Loud)
    return layer


def within_itself() -> nn.Sequential:
    model = nn.Sequential(nn.Tanh())
    model.append(model)
    return model


TWICE = nn.Linear(4, 4)


def with_attribute(layer: nn.Module, name: str, value: object) -> nn.Module:
    *parents, attribute = name.split(".")
    setattr(layer.get_submodule(".".join(parents)), attribute, value)
    return layer


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Doubled(4, 4), "the layer Doubled is none that a description knows"),
        (nn.Sequential(nn.Tanh(), Residual(Doubled(4, 4))), r"the layer Doubled at 1\.body is none"),
        (nn.MultiheadAttention(4, 2), "the layer MultiheadAttention is none"),
        (VIT(qkv_bias=False), r"VisionTransformer: its blocks\.0\.attn\.qkv\.bias is a NoneType"),
        *(
            (nn.Linear(4, 4).to(dtype), f"weight is {dtype}; only float32 networks")
            for dtype in (torch.float64, torch.float16, torch.bfloat16)
        ),
        (loud(), "weight is a Loud, not a plain tensor"),
        (nn.Sequential(TWICE, nn.ReLU(), TWICE), r"2\.weight and 0\.weight share their memory"),
        (within_itself(), "layers inside layers"),
        (
            with_attribute(ResidualAttention(4, 2, qk_norm=1.0, vo_norm=1.0), "query.bias", nn.Parameter(torch.ones(4))),
            r"has a query\.bias",
        ),
        (with_attribute(nn.Linear(4, 4), "in_features", 5), r"tensor weight .* shape \(4, 5\), not \(4, 4\)"),
        (TakeToken([0] * 100), "index .*should be a whole number"),
        (TakeToken(True), "index True: should be a whole number"),
        (TakeToken(slice(0, 2)), "index cannot be read: .*slice is not a plain number"),
        *((with_attribute(Normalise(), "std", std), f"Normalise: std {std}: should be positive") for std in (-1.0, 0)),
        (with_attribute(Normalise(), "std", math.nan), "std nan: should be a finite number"),
        (with_attribute(Normalise(), "mean", torch.tensor(0.5)), "mean cannot be read: .*Tensor is not a plain"),
        (with_attribute(LayerProject(1.0), "radius", -1), "radius -1: should be positive"),
        (nn.Sequential(nn.Softplus(beta=math.inf)), "at 0: beta inf: should be a finite number"),
        (with_attribute(nn.Conv2d(1, 1, 1), "stride", (0, 0)), "stride .* whole number from 1"),
        (with_attribute(nn.Conv2d(1, 1, 1), "padding", (-1, 0)), "padding .* whole number from 0"),
        (with_attribute(SelfAttention(4, 2), "heads", 3), "ValueError: 3 heads do not divide width 4"),
        (with_attribute(ScaledCosineAttention(4, 2, eps=0.1), "eps", "x"), "eps cannot be read"),
    ],
)
def test_layers_that_cannot_be_described_are_refused_by_name(model, reason) -> None:
    with pytest.raises(BenchmarkError, match=reason):
        through_json(model)


def linear(**change: object) -> dict[str, object]:
    arguments = {"in_features": 4, "out_features": 3, "bias": True, **change}
    return {"layer": "Linear", "arguments": arguments}


def nested(depth: int) -> object:
    tree: object = {"layer": "Tanh", "arguments": {}}
    for _ in range(depth):
        tree = {"layer": "Residual", "arguments": {}, "parts": [tree]}
    return tree


SOUND = {"weight": torch.zeros(3, 4), "bias": torch.zeros(3)}
NOT_PLAIN = [
    [0.0, 0.0, 0.0], nn.Parameter(torch.zeros(3)), torch.zeros(3).as_subclass(Loud), torch.zeros(3).to_sparse(),
    torch.zeros(3, device="meta"), torch.zeros(3).double(), torch.zeros(3, dtype=torch.complex64),
]  # fmt: skip
DEEP: list = []
for _ in range(10_000):
    DEEP = [DEEP]


SIZES = ("patch_size", "in_chans", "num_classes", "embed_dim", "num_heads", "cls_attn_layers")
XCIT = dict.fromkeys(SIZES, 8) | {"strides": [1], "tokens_norm": True, "depth": 60}
WINDOWS = {"width": 4, "heads": 1, "side": 64, "window": 16, "shift": 0}
FEW = ({"layer": "Xcit", "arguments": XCIT}, {"layer": "L2WindowAttention", "arguments": WINDOWS})
BOMBS = [{"layer": "Sequential", "arguments": {}, "parts": [tree] * 20} for tree in FEW]  # few layers build many


@pytest.mark.parametrize(
    ("tree", "reason"),
    [
        *((tree, "a node of the description") for tree in (None, [], DEEP, {"layer": "Linear"}, linear() | {"forward": "x"})),
        (linear() | {"layer": "torch.nn.Linear"}, "unknown layer 'torch.nn.Linear'"),
        (linear() | {"layer": "Module"}, "unknown layer 'Module'"),
        *((linear() | {"layer": name}, "unknown layer") for name in (["Linear"], DEEP)),
        (linear() | {"parts": []}, "Linear should hold no parts"),
        *((tree, "arguments of Linear should be in_features, out_features, bias") for tree in (linear() | {"arguments": []}, linear(device="cpu"))),
        (linear(in_features=0), "in_features 0: should be a whole number from 1"),
        *((linear(in_features=value), f"in_features {value!r}") for value in (True, 4.0, "4")),
        (linear(in_features=10**5000), "in_features of more than 30 digits"),
        (linear(in_features=2**20, out_features=2**20), r"of shape \(1048576, 1048576\), not \(3, 4\)"),
        (linear(bias=1), "bias 1: should be true or false"),
        (linear(bias=DEEP), "bias .* should be true or false"),
        ({"layer": "Sequential", "arguments": {}}, "Sequential should hold a list of parts"),
        ({"layer": "Sequential", "arguments": {}, "parts": [[]]}, "a node of the description"),
        ({"layer": "Sequential", "arguments": {}, "parts": [nested(0)] * LAYERS}, f"more than {LAYERS}"),
        *(({"layer": "Residual", "arguments": {}, "parts": parts}, "Residual should hold one part") for parts in ([], [linear()] * 2)),
        *((bomb, f"more than {LAYERS}") for bomb in BOMBS),
        *((nested(depth), f"more than {DEPTH} layers inside layers") for depth in (DEPTH + 1, 10_000)),
        ({"layer": "GELU", "arguments": {"approximate": "fast"}}, "approximate 'fast': should be one of none, tanh"),
        ({"layer": "Normalise", "arguments": {"mean": math.nan, "std": 1}}, "mean nan: should be a finite"),
        ({"layer": "Normalise", "arguments": {"mean": 0, "std": 1e300}}, "std 1e.300: should be a finite"),
        ({"layer": "LayerNorm", "arguments": {"normalized_shape": [2] * 65, "eps": 1, "elementwise_affine": True, "bias": True}}, "list of 1 to 64"),
        ({"layer": "L2WindowAttention", "arguments": {"width": 4, "heads": 1, "side": 4096, "window": 2, "shift": 0}}, "side 4096"),
    ],
)  # fmt: skip
def test_malformed_trees_are_refused_in_one_line(tree, reason) -> None:
    with pytest.raises(BenchmarkError, match=reason) as raised:
        rebuild(tree, SOUND)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"weight": None}, "lacks the tensor weight"),
        ({"other": torch.zeros(3)}, "a tensor 'other', which no layer"),
        ({7: torch.zeros(3)}, "a tensor 7, which no layer"),
        ({"bias": torch.zeros(4)}, r"bias .* shape \(3,\), not \(4,\)"),
        *(({"bias": bias}, "bias .* plain float32") for bias in NOT_PLAIN),
        ({"weight": torch.zeros(1).expand(3, 4)}, "weight .* contiguous"),
        *(({"weight": torch.full((3, 4), value)}, "weight .* NaN or infinity") for value in (math.nan, math.inf)),
    ],
)
def test_malformed_tensors_are_refused_in_one_line(change, reason) -> None:
    tensors = {name: tensor for name, tensor in {**SOUND, **change}.items() if tensor is not None}
    with pytest.raises(BenchmarkError, match=reason):
        rebuild(linear(), tensors)
    assert torch.equal(rebuild(linear(), SOUND)(torch.zeros(1, 4)), torch.zeros(1, 3))


def test_a_rebuilt_network_has_copies_of_the_tensors() -> None:
    tensors = {name: tensor.clone() for name, tensor in SOUND.items()}
    made = rebuild(linear(), tensors)
    tensors["weight"] += 1
    assert not made.weight.any()
    assert type(made.weight) is nn.Parameter
